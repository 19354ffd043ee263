// What the pages do, each thing in a browser with nothing kept, and accessibility by axe-core. Prints a row for each check.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { mcpServer } from "./mcp.mjs";
import { LOOKS, answered, browser, folder, page, say, send, server } from "./harness.mjs";
import { hostile } from "./hostile.mjs";
import { difference, shots } from "./shots.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** Of a picture's cells: figures and the lines of charts are others in every run. */
const MAX_DIFFERENCE = 0.04;
const wanted = process.argv.slice(2);
const chromium = await browser();
let running = await server("--temp", "0");
let failed = 0;

async function check(name, look, work) {
  if (wanted.length && !wanted.some((word) => name.includes(word))) return;
  const { page: made, errors, close } = await page(chromium, running.url, look);
  try {
    await work(made);
    assert.deepEqual(errors, [], "errors in the page's console");
    console.log(`ok    ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}\n${error.stack}\n${errors.join("\n")}`);
  } finally {
    await close();
  }
}

const opened = async (made) => {
  await made.goto("/");
  await made.waitForFunction(() => document.querySelector("#model").textContent.startsWith("pocket"));
};
const texts = (made, selector) => made.locator(selector).allInnerTexts();
/** What the page makes of a Markdown text. */
const rendered = (made, source) =>
  made.evaluate(async (text) => {
    const { render } = await import("/assets/markdown.js");
    const box = document.createElement("div");
    box.append(render(text, Array.from({ length: text.length }, () => 2)));
    return box.innerHTML;
  }, source);

await check("a conversation is kept, found, renamed, deleted and brought back", {}, async (made) => {
  await opened(made);
  assert.equal(await made.isVisible("#new"), false, "there is nothing to leave yet");
  await say(made, "What is 20 + 15?");
  await made.click("#new");
  await say(made, "Hello!");
  assert.deepEqual(await texts(made, "#conversations .title"), ["Hello!", "What is 20 + 15?"]);
  await made.reload();
  await made.waitForSelector("article.assistant");
  assert.deepEqual(await texts(made, "article.user .plain"), ["Hello!"], "the tab shows what it showed");
  await made.fill("#search", "20 15");
  await made.waitForFunction(() => document.querySelectorAll("#conversations li").length === 1);
  await made.click("#conversations .title");
  await made.waitForFunction(() => document.querySelector("article.user .plain")?.textContent === "What is 20 + 15?");
  await made.fill("#search", "");
  const row = made.locator("#conversations li", { hasText: "20 + 15" });
  // A row has its buttons where the pointer is.
  await row.hover();
  await row.getByRole("button", { name: /Rename/ }).click();
  await made.fill("#conversations input", "Sums");
  await made.press("#conversations input", "Enter");
  await made.waitForSelector("#conversations .title:has-text('Sums')");
  await made.locator("#conversations li", { hasText: "Sums" }).hover();
  await made.getByRole("button", { name: "Delete: Sums" }).click();
  await made.waitForFunction(() => document.querySelectorAll("#conversations li").length === 1);
  assert.equal(await made.locator("article").count(), 0, "what was deleted is not shown");
  await made.click("#note-act");
  await made.waitForSelector("#conversations .title:has-text('Sums')");
  await made.waitForFunction(() => document.querySelectorAll("article").length === 2);
});

await check("an edited message and a second answer are versions that can be switched", {}, async (made) => {
  await opened(made);
  await say(made, "What is 20 + 15?");
  await made.getByRole("button", { name: "Edit" }).click();
  await made.fill("#ask", "What is 2 + 2?");
  await made.press("#ask", "Enter");
  await answered(made, 1);
  assert.deepEqual(await texts(made, "article.user .plain"), ["What is 2 + 2?"]);
  assert.match((await texts(made, "article.user .versions"))[0], /2 of 2/);
  await made.locator("article.user").getByRole("button", { name: "Version before" }).click();
  assert.deepEqual(await texts(made, "article.user .plain"), ["What is 20 + 15?"]);
  assert.match((await texts(made, "article.assistant .text"))[0], /35/);
  await made.getByRole("button", { name: "Again" }).click();
  await answered(made, 1);
  assert.match((await texts(made, "article.assistant .versions"))[0], /2 of 2/);
});

await check("conversations go into a file and come out of it", {}, async (made) => {
  await opened(made);
  await say(made, "What is 20 + 15?");
  const [file] = await Promise.all([made.waitForEvent("download"), made.click("#export")]);
  const path = join(folder(), file.suggestedFilename());
  await file.saveAs(path);
  const told = JSON.parse(readFileSync(path, "utf8"));
  assert.equal(told.format, "nextn-conversations");
  assert.equal(told.conversations[0].nodes[0].content, "What is 20 + 15?");
  await made.setInputFiles("#import-file", path);
  await made.waitForFunction(() => document.querySelectorAll("#conversations li").length === 2);
  for (const [text, words] of [["{", "not JSON"], ["{}", "nextn-conversations"], ['{"format":"nextn-conversations","conversations":[{"nodes":[{"role":"user","parent":3}]}]}', "follows message 3"]]) {
    writeFileSync(path, text);
    await made.setInputFiles("#import-file", path);
    await made.waitForFunction((part) => document.querySelector("#note-text").textContent.includes(part), words);
  }
  assert.equal(await made.locator("#conversations li").count(), 2, "a wrong file changes nothing");
});

await check("a text goes with a message, a file that is none is refused", {}, async (made) => {
  await opened(made);
  await made.setInputFiles("#attach-files", [
    { name: "notes.md", mimeType: "text/markdown", buffer: Buffer.from("# Notes\nThe word is `heron`.\n") },
    { name: "noise.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0, 159, 146, 150]) },
  ]);
  await made.waitForSelector("#attached .file");
  assert.match(await made.innerText("#attach-note"), /noise\.bin: neither an image nor a text/);
  const sent = made.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await made.fill("#ask", "Which word?");
  await made.press("#ask", "Enter");
  const { messages } = (await sent).postDataJSON();
  assert.equal(messages.at(-1).content, "File notes.md:\n```\n# Notes\nThe word is `heron`.\n```\n\nWhich word?");
  await answered(made, 1);
  assert.match(await made.innerText("article.user .file"), /notes\.md/);
});

await check("files are dropped and pasted too", {}, async (made) => {
  await opened(made);
  const give = (kind) =>
    made.evaluate((type) => {
      const data = new DataTransfer();
      data.items.add(new File([`the word is ${type}`], `${type}.txt`, { type: "text/plain" }));
      const event = type === "drop" ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }) : new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
      document.querySelector("#ask").dispatchEvent(event);
    }, kind);
  await give("drop");
  await made.waitForSelector("#attached .file:has-text('drop.txt')");
  await give("paste");
  await made.waitForSelector("#attached .file:has-text('paste.txt')");
  await made.getByRole("button", { name: "Remove drop.txt" }).click();
  assert.deepEqual(await texts(made, "#attached b"), ["paste.txt"]);
});

await check("everything is reached by Tab, and the keys do what their list says", {}, async (made) => {
  await opened(made);
  await say(made, "What is 20 + 15?");
  const wanted = await made.evaluate(() => {
    const all = [...document.querySelectorAll("a[href], button, select, input, textarea, summary, [tabindex='0']")];
    const seen = all.filter((node) => !node.disabled && node.checkVisibility({ visibilityProperty: true }));
    seen.forEach((node, i) => (node.dataset.stop = i));
    document.activeElement.blur();
    return seen.map((node) => `${node.tagName} ${node.id || node.textContent}`);
  });
  const reached = new Set();
  for (let i = 0; i < wanted.length + 5; i += 1) {
    await made.keyboard.press("Tab");
    reached.add(await made.evaluate(() => Number(document.activeElement?.dataset.stop ?? -1)));
  }
  assert.deepEqual(wanted.filter((_, i) => !reached.has(i)), []);
  await made.locator("#ask").focus();
  const shown = (selector) => made.waitForSelector(`${selector}:visible`);
  await made.keyboard.press("Alt+c");
  await made.waitForSelector("#history", { state: "hidden" });
  await made.keyboard.press("Alt+f");
  await shown("#search");
  assert.equal(await made.evaluate(() => document.activeElement.id), "search");
  await made.keyboard.press("Alt+s");
  await shown("#settings");
  await made.keyboard.press("Escape");
  const theme = () => made.evaluate(() => document.documentElement.dataset.theme);
  await made.keyboard.press("Alt+l");
  assert.equal(await theme(), "dark");
  await made.keyboard.press("Alt+d");
  assert.equal(await made.isChecked("#tint-switch"), false);
  await made.locator("#log").focus();
  await made.keyboard.press("/");
  await made.keyboard.press("ArrowUp");
  assert.equal(await made.inputValue("#ask"), "What is 20 + 15?");
  await made.keyboard.press("Escape");
  assert.equal(await made.inputValue("#ask"), "");
  await made.keyboard.press("Alt+r");
  await answered(made, 1);
  assert.match((await texts(made, "article.assistant .versions"))[0], /2 of 2/);
  await made.keyboard.press("Alt+n");
  assert.equal(await made.locator("article").count(), 0);
});

await check("Markdown: tables, tasks, code, formulas; no tint in code; nothing becomes markup", {}, async (made) => {
  await opened(made);
  const table = await rendered(made, "| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | 3 |");
  assert.match(table, /<th>.*a.*<th class="middle">.*b.*<th class="right">/s);
  const tasks = await rendered(made, "- [x] done\n- [ ] open");
  assert.equal(tasks.match(/type="checkbox"/g).length, 2);
  assert.equal(tasks.match(/checked=""/g).length, 1);
  const code = await rendered(made, "```rust\nlet x = \"a\"; // b\n```\nand `y`");
  assert.match(code, /code-word">let<.*code-string">"a"<.*code-comment">\/\/ b</s);
  assert.ok(!/<code>[^<]*<span class="drafted/.test(code), code);
  assert.match(code, /drafted d2/);
  const formula = await rendered(made, "$\\frac{a}{b^2}$ costs $5 and $6\n\n$$\\sum_{i=1}^n x_i$$");
  assert.match(formula, /<mfrac><mi>a<\/mi><msup><mi>b<\/mi><mn>2<\/mn><\/msup><\/mfrac>/);
  assert.match(formula, /\$5 and \$6/);
  assert.match(formula, /<math display="block".*<munderover>/s);
  assert.match(await rendered(made, "\\(\\unknown{x}\\)"), /\\unknown/, "what is not understood stays readable");
  assert.ok(!/<img|<script/.test(await rendered(made, "<img src=x onerror=alert(1)><script>alert(1)</script> $<img>$")));
});

await check("tints have a legend and a switch", {}, async (made) => {
  await opened(made);
  await say(made, "Count from 1 to 20.");
  assert.ok((await made.locator("article .drafted").count()) > 0, "something was drafted");
  const told = (await made.innerText("article.assistant:last-of-type")).match(/([\d.,]+)\/s · .* · ([\d.,]+)\sms\/step/);
  assert.deepEqual([await made.innerText("#rate"), await made.innerText("#step-ms")], told?.slice(1), "panel and answer agree");
  assert.equal(await made.isVisible("#tint-legend"), true);
  await made.click("#tint-switch");
  assert.equal(await made.evaluate(() => document.body.classList.contains("tinted")), false);
  assert.equal(await made.isVisible("#tint-legend"), false);
});

await check("thinking is shown while it comes, with its time", {}, async (made) => {
  const chunk = (delta, more = {}) => `data: ${JSON.stringify({ model: "thinker", choices: [{ delta, finish_reason: null }], ...more })}\n\n`;
  await made.route("**/v1/chat/completions", (route) =>
    route.fulfill({ contentType: "text/event-stream", body: `${chunk({ reasoning_content: "Let me see." })}${chunk({ content: "Yes." })}data: [DONE]\n\n` }),
  );
  await opened(made);
  await say(made, "Well?");
  assert.match(await made.innerText("details.thinking summary"), /Thought for|Thinking/);
  assert.equal(await made.evaluate(() => document.querySelector("details.thinking").open), false, "it shuts when the answer comes");
  assert.equal(await made.innerText("article.assistant .who"), "thinker");
});

await check("the keys are listed by ?, presets are kept, names are shown", {}, async (made) => {
  await opened(made);
  await made.press("#ask", "?");
  await made.waitForSelector("#keys[open]");
  await made.press("#keys", "Escape");
  await made.click("#open-settings");
  await made.fill("#system", "Answer in one word.");
  await made.fill("#temperature", "0.1");
  await made.fill("#preset-name", "Short");
  await made.click("#preset-save");
  await made.fill("#name", "Ada");
  await made.fill("#system", "");
  await made.click("#close-settings");
  await made.click("#open-settings");
  assert.equal(await made.inputValue("#system"), "");
  await made.selectOption("#preset", "Short");
  assert.equal(await made.inputValue("#system"), "Answer in one word.");
  await made.click("#close-settings");
  const sent = made.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await made.fill("#ask", "Hello");
  await made.press("#ask", "Enter");
  const body = (await sent).postDataJSON();
  assert.deepEqual([body.messages[0], body.temperature], [{ role: "system", content: "Answer in one word." }, 0.1]);
  await answered(made, 1);
  assert.deepEqual(await texts(made, ".who"), ["Ada", "pocket"]);
});

await check("on a phone everything to touch has 44 pixels, and the model has its name", { width: 390 }, async (made) => {
  await opened(made);
  await say(made, "What is 20 + 15?");
  assert.equal(await made.isVisible("#model"), true);
  for (const open of ["#open-history", "#open-settings", null]) {
    if (open) await made.click(open);
    const small = await made.evaluate(() => {
      const dialog = document.querySelector("dialog[open]") ?? document;
      return [...dialog.querySelectorAll("button, select, a.button, summary, input:not([type=checkbox])")]
        .map((node) => [node, node.getBoundingClientRect()])
        .filter(([node, box]) => box.width > 0 && node.checkVisibility({ visibilityProperty: true }) && (box.height < 43.9 || box.width < 43.9))
        .map(([node, box]) => `${node.id || node.textContent} ${box.width.toFixed(0)} x ${box.height.toFixed(0)}`);
    });
    assert.deepEqual(small, [], `after ${open}`);
    const wide = await made.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `the page is ${wide} pixels too wide after ${open}`);
    if (open === "#open-history") await made.click("#close-history");
    else if (open) await made.press("dialog[open]", "Escape");
  }
});

await check("a model among several is chosen, loaded with progress, and named", {}, async (made) => {
  let status = "unloaded";
  const meta = { quantization: "Q4_K_M", nextn: true };
  const more = { loaded: { meta }, loading: { progress: { "large.gguf": { done: 3 * 2 ** 20, total: 8 * 2 ** 20 } } } };
  const list = () => ({ object: "list", data: [{ id: "pocket", status: "loaded", meta }, { id: "large", status, ...more[status] }] });
  await made.route("**/v1/models", (route) => route.fulfill({ json: list() }));
  await made.route("**/models/load", (route) => {
    status = "loading";
    setTimeout(() => (status = "loaded"), 1500);
    return route.fulfill({ json: { success: true } });
  });
  await made.goto("/");
  await made.waitForSelector("#pick:visible");
  assert.deepEqual(await texts(made, "#pick option"), ["pocket", "large (not loaded)"]);
  await made.selectOption("#pick", "large");
  await made.waitForFunction(() => /Loading large .* 37 % · 3.* of 8.* MiB/.test(document.querySelector("#loading").textContent));
  await made.waitForFunction(() => document.querySelector("#loading").hidden);
  const sent = made.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await made.fill("#ask", "Hello");
  await made.press("#ask", "Enter");
  assert.equal((await sent).postDataJSON().model, "large");
});

/** Gives the page an MCP server in its settings, and waits until that has answered. */
async function withTools(made, url, token = "") {
  await made.click("#open-settings");
  await made.fill("#mcp-url", url);
  await made.fill("#mcp-token", token);
  await made.click("#mcp-add");
  await made.waitForFunction(() => /tools?$|No tools/.test(document.querySelector("#mcp-list li")?.innerText.replace(/\s*(Ask again)?\s*×\s*$/, "") ?? ""));
  const state = await made.innerText("#mcp-list");
  await made.press("#settings", "Escape");
  return state;
}

/** Asks for the weather, answers the question before the call, and waits for the reply. */
async function weather(made, button) {
  const before = await made.locator(".call").count();
  await made.fill("#ask", "What is the weather in Oslo?");
  await made.press("#ask", "Enter");
  await made.locator(".call .question").getByRole("button", { name: button }).click();
  await answered(made, 1);
  assert.equal(await made.locator(".call").count(), before + 1);
  return made.locator("article.assistant").last().innerText();
}

await check("tools of an MCP server are run after a question each", {}, async (made) => {
  const mcp = await mcpServer();
  await opened(made);
  assert.match(await withTools(made, mcp.url), /weather: 2 tools/);
  const calls = () => mcp.asked.filter(({ method }) => method === "tools/call");
  await made.fill("#ask", "What is the weather in Oslo?");
  await made.press("#ask", "Enter");
  await made.waitForSelector(".call .question");
  assert.match(await made.innerText(".call"), /get_weather of weather.*"city": "Oslo".*Run it\?/s);
  assert.equal(calls().length, 0, "nothing runs before the answer");
  await made.getByRole("button", { name: "Run" }).click();
  await answered(made, 2);
  assert.deepEqual(calls().map(({ params }) => params), [{ name: "get_weather", arguments: { city: "Oslo" } }]);
  assert.match(await made.locator("article.assistant").last().innerText(), /snowy/);
  await made.click(".call summary");
  assert.match(await made.innerText(".call details"), /"temperature":-3/);
  assert.ok(mcp.asked.some(({ id, result }) => id === "its-own" && result), "the server's ping is answered");
  // What was called is kept, and is sent again with the next message.
  await made.reload();
  await made.waitForSelector(".call details");
  await made.waitForFunction(() => /tool/.test(document.querySelector("#tools-note").textContent));
  mcp.forget();
  await made.click("#new");
  await weather(made, "Run");
  assert.equal(calls().length, 2, "a session that the server has ended is begun anew");
  await made.click("#new");
  const sent = [];
  made.on("request", (request) => request.url().endsWith("/v1/chat/completions") && sent.push(request.postDataJSON()));
  await weather(made, "Refuse");
  assert.equal(calls().length, 2, "what is refused does not run");
  const { messages, tools } = sent.at(-1);
  assert.deepEqual(tools.map(({ function: { name } }) => name), ["get_weather", "get_time"]);
  assert.equal(messages.at(-1).content, "The user refused this call.");
  assert.equal(messages.at(-1).tool_call_id, messages.at(-2).tool_calls[0].id);
  await made.click("#new");
  await made.fill("#ask", "What is the weather in Oslo?");
  await made.press("#ask", "Enter");
  await made.waitForSelector(".call .question");
  await made.click("#stop");
  await made.waitForFunction(() => /Not run/.test(document.querySelector(".call").innerText));
  await mcp.stop();
});

await check("an MCP server that wants a token, allows no page or is none is told as such", {}, async (made) => {
  const locked = await mcpServer({ token: "secret" });
  const shut = await mcpServer({ cors: false });
  await opened(made);
  for (const [url, token, words] of [[locked.url, "", /401.*token/], [locked.url, "secret", /2 tools/], [shut.url, "", /CORS/], [`${running.url}/health`, "", /405/]]) {
    assert.match(await withTools(made, url, token), words);
    await made.click("#open-settings");
    await made.getByRole("button", { name: /Remove/ }).click();
    await made.press("#settings", "Escape");
  }
  await made.click("#open-settings");
  await made.fill("#mcp-url", "javascript:alert(1)");
  await made.click("#mcp-add");
  assert.match(await made.innerText("#mcp-wrong"), /http:/);
  assert.equal(await made.locator("#mcp-list li").count(), 0);
  await made.press("#settings", "Escape");
  await Promise.all([locked.stop(), shut.stop()]);
});

await check("the dashboard shows rates of tokens, quantiles and models", {}, async (made) => {
  await made.goto("/dashboard");
  await made.waitForSelector("#models tbody tr");
  await made.request.post("/completion", { data: { prompt: "1, 2, 3, 4, 1, 2, 3, 4,", n_predict: 32 } });
  await made.waitForFunction(() => /their tokens (?!0$|-)[\d.]+/.test([...document.querySelectorAll(".legend span")].map((span) => span.textContent).join("\n")));
  // Passes are counted as they are computed, tokens when the answer has ended.
  await made.waitForFunction(() => / · .* m?s$/.test([...document.querySelectorAll("#tiles dt")].find((dt) => dt.textContent.startsWith("between"))?.nextSibling?.textContent ?? ""));
  const tiles = await made.innerText("#tiles");
  assert.match(tiles, /first token, p50\s·\sp95\s+[\d.,]+( ms)? · [\d.,]+ m?s/);
  const models = await made.innerText("#models");
  assert.match(models, /pocket/);
  assert.match(models, /between tokens, p50\s·\sp95\s+[\d.,]+( ms)? · [\d.,]+ m?s/);
});

for (const look of LOOKS) {
  await check(`accessibility at ${look.width} pixels, ${look.theme}`, look, async (made) => {
    const serious = async (where) => {
      await made.evaluate(AXE);
      const { violations } = await made.evaluate(() => window.axe.run());
      const bad = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
      assert.deepEqual(bad.map(({ id, nodes }) => `${where}: ${id}: ${nodes.map(({ html, any }) => `${html.slice(0, 120)} ${any[0]?.message ?? ""}`).join(" | ")}`), []);
    };
    await opened(made);
    await serious("an empty page");
    await made.setInputFiles("#attach-files", [{ name: "a.md", mimeType: "text/markdown", buffer: Buffer.from("x") }]);
    await say(made, "Count from 1 to 20.");
    await serious("an answer");
    if (look.width < 600) await made.click("#open-history");
    await serious("the list");
    if (look.width < 600) await made.click("#close-history");
    for (const [button, dialog] of [["#open-settings", "#settings"], ["#open-keys", "#keys"]]) {
      // A phone has no keys to list.
      if (!(await made.isVisible(button))) continue;
      await made.click(button);
      await serious(dialog);
      await made.press(dialog, "Escape");
    }
    await made.evaluate(async () => {
      const { render } = await import("/assets/markdown.js");
      const source = "## A\n\n| a | b |\n|--|--:|\n| 1 | 2 |\n\n- [x] t\n\n```rust\nfn main() { let a = \"b\"; // c 1\n}\n```\n\n$$\\sqrt{2}$$ [l](https://example.org)";
      const text = document.querySelector("article.assistant .text");
      text.append(render(source), render("one two three four five six seven eight", Array.from({ length: 40 }, (_, i) => Math.floor(i / 5) + 1)));
    });
    await serious("Markdown");
    const mcp = await mcpServer();
    await withTools(made, mcp.url);
    await made.click("#new");
    await send(made, "What is the weather in Oslo?");
    await made.waitForSelector(".call .question");
    await serious("the question before a call");
    await made.click("#stop");
    await mcp.stop();
    await made.goto("/dashboard");
    await made.waitForSelector("#models tbody tr");
    await serious("the dashboard");
  });
}

await hostile(check, opened, rendered);

await check("the pages look as in docs/pictures", {}, async (made) => {
  const to = folder();
  const wrong = [];
  for (const name of await shots(chromium, running.url, to)) {
    const share = await difference(made, join(to, name), join("docs/pictures", name));
    if (share > MAX_DIFFERENCE) wrong.push(`${name}: ${Math.round(100 * share)} % of it differ (${to}): if it should, scripts/pictures.sh`);
  }
  assert.deepEqual(wrong, []);
  const other = await difference(made, join(to, "chat-light.png"), join("docs/pictures", "chat-dark.png"));
  assert.ok(other > 0.5, `another theme is seen: ${other}`);
});

// The last one: it ends the server.
await check("a lost connection is told, and the page finds the server again", {}, async (made) => {
  await opened(made);
  const port = new URL(running.url).port;
  await running.stop();
  await made.fill("#ask", "Hello");
  await made.press("#ask", "Enter");
  await made.waitForSelector("#lost:visible");
  assert.match(await made.innerText("#lost"), /connection to nextn-server is lost/);
  await made.waitForFunction(() => /connection to nextn-server was lost/.test(document.querySelector("article.assistant .wrong")?.textContent));
  running = await server("--temp", "0", "--port", port);
  await made.waitForFunction(() => document.querySelector("#lost").hidden);
  await made.getByRole("button", { name: "Retry" }).click();
  await answered(made, 1);
  assert.equal(await made.locator("article.assistant .wrong").count(), 0);
});

await chromium.close();
await running.stop();
process.exit(failed ? 1 : 0);
