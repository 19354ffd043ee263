// What users and browsers do to the chat page that nobody planned: checks like those in checks.mjs, which runs them.

import assert from "node:assert/strict";
import { answered, say, send } from "./harness.mjs";

/** Runs them all by `check`; `opened` and `rendered` are those of checks.mjs. */
export async function hostile(check, opened, rendered) {
  const forbidden = () => {
    for (const name of ["localStorage", "sessionStorage", "indexedDB", "BroadcastChannel"]) {
      const get = () => {
        throw new DOMException("The browser's settings forbid it", "SecurityError");
      };
      Object.defineProperty(window, name, { get });
    }
  };
  await check("a browser that keeps nothing for pages can chat all the same", { before: forbidden }, async (made) => {
    await opened(made);
    assert.match(await made.innerText("#conversations-none"), /until this page is closed/);
    await say(made, "What is 20 + 15?");
    assert.match(await made.innerText("article.assistant"), /35/);
    await made.click("#new");
    await made.click("#conversations .title");
    assert.equal(await made.locator("article").count(), 2, "it is there until the page is closed");
    await made.click("#theme");
    assert.equal(await made.evaluate(() => document.documentElement.dataset.theme), "dark");
    await made.click("#open-settings");
    await made.fill("#key", "secret");
    await made.click("#close-settings");
    const sent = made.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
    await send(made, "Hello!");
    assert.equal((await sent).headers().authorization, "Bearer secret", "a key that was typed is used");
    await answered(made, 2);
  });

  await check("two tabs of one conversation lose nothing of each other", {}, async (made) => {
    await opened(made);
    await say(made, "What is 20 + 15?");
    const other = await made.context().newPage();
    await other.goto("/");
    await other.click("#conversations .title");
    await other.waitForSelector("article.assistant");
    await say(other, "Hello!");
    await made.waitForFunction(() => document.querySelectorAll("article").length === 4);
    assert.match(await made.locator("article.user").last().innerText(), /Hello!/, "what came there is shown here");
    // Both at once: neither answer ends before the other has begun.
    let end;
    const held = new Promise((resolve) => (end = resolve));
    const body = `data: ${JSON.stringify({ model: "pocket", choices: [{ delta: { content: "Held." } }] })}\n\ndata: [DONE]\n\n`;
    const answer = async (route) => {
      await held;
      await route.fulfill({ contentType: "text/event-stream", body });
    };
    await made.route("**/v1/chat/completions", answer);
    await other.route("**/v1/chat/completions", answer);
    await send(made, "Here");
    await other.waitForFunction(() => document.querySelectorAll("article.user").length === 3);
    await send(other, "There");
    await other.waitForSelector("#stop:visible");
    end();
    for (const page of [made, other]) await answered(page, 3);
    await made.waitForFunction(() => document.querySelectorAll("#conversations li").length === 2);
    const messages = await made.evaluate(async () => (await (await import("/assets/store.js")).everything()).map(({ nodes }) => nodes.map(({ content }) => content).join("|")));
    for (const word of ["Hello!", "Here", "There"]) assert.ok(messages.some((all) => all.includes(word)), `${word} is kept: ${messages}`);
  });

  await check("an answer that breaks off keeps what came, and is asked for again", {}, async (made) => {
    const body = `data: ${JSON.stringify({ model: "pocket", choices: [{ delta: { content: "Half an ans" } }] })}\n\n`;
    await made.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body }));
    await opened(made);
    await send(made, "What is 20 + 15?");
    await made.waitForFunction(() => /lost while this answer came/.test(document.querySelector("article.assistant .wrong")?.textContent));
    await made.waitForFunction(() => document.querySelector("#lost").hidden);
    await made.unroute("**/v1/chat/completions");
    await made.reload();
    await made.waitForSelector("article.assistant .wrong");
    assert.match(await made.innerText("article.assistant .text"), /Half an ans/);
    await made.getByRole("button", { name: "Retry" }).click();
    await answered(made, 1);
    assert.match(await made.innerText("article.assistant .text"), /35/);
    assert.match(await made.innerText("article.assistant .versions"), /2 of 2/);
  });

  await check("on a phone Enter is a new line and the keyboard waits to be asked for", { width: 390 }, async (made) => {
    await opened(made);
    assert.notEqual(await made.evaluate(() => document.activeElement.id), "ask", "the keyboard would hide half of the page");
    assert.equal(await made.evaluate(() => document.querySelector("#ask").enterKeyHint), "enter");
    await made.tap("#ask");
    await made.keyboard.type("one");
    await made.keyboard.press("Enter");
    await made.keyboard.type("two");
    assert.equal(await made.inputValue("#ask"), "one\ntwo");
    await made.tap("#send");
    await answered(made, 1);
    assert.equal(await made.innerText("article.user .plain"), "one\ntwo");
  });

  await check("a long text that is pasted becomes a file, one that is too long is refused", {}, async (made) => {
    await opened(made);
    const paste = (n) =>
      made.evaluate((times) => {
        const clipboardData = new DataTransfer();
        clipboardData.setData("text/plain", "lorem ipsum\n".repeat(times));
        document.querySelector("#ask").dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
      }, n);
    await paste(10_000);
    await made.waitForSelector("#attached .file:has-text('pasted.txt')");
    assert.equal(await made.inputValue("#ask"), "");
    await paste(300_000);
    await made.waitForFunction(() => /pasted\.txt: more than 2 MiB/.test(document.querySelector("#attach-note").textContent));
  });

  await check("Markdown as models write it: tables and formulas straight after a sentence, bars in cells, line breaks, other directions", {}, async (made) => {
    await opened(made);
    const table = await rendered(made, "The table:\n| a | b |\n|---|---|\n| `x \\| y` | 1<br>2 \\| 3 |");
    assert.match(table, /<p>.*The table:.*<\/p>.*<table>.*<td><code>x \| y<\/code><\/td>.*<br>/s);
    assert.equal(table.match(/<td>/g).length, 2, table);
    assert.match(await rendered(made, "So:\n\\[\nx^2\n\\]\nand on"), /<p>.*So:.*<\/p>.*<math display="block".*<msup>.*<p>.*and on/s);
    assert.match(await rendered(made, "So:\n$$\nno end"), /no end/);
    const direction = (text, selector) =>
      made.evaluate(
        async ([source, chosen]) => {
          const { render } = await import("/assets/markdown.js");
          const box = document.createElement("div");
          box.className = "text";
          box.append(render(source));
          document.querySelector("#log").append(box);
          const range = document.createRange();
          range.selectNodeContents(box.querySelector(chosen));
          const [inner, outer] = [range.getBoundingClientRect(), box.getBoundingClientRect()];
          return inner.left - outer.left > outer.right - inner.right ? "right" : "left";
        },
        [text, selector],
      );
    assert.equal(await direction("\u05e9\u05dc\u05d5\u05dd.", "p"), "right", "Hebrew begins on the right");
    assert.equal(await direction("- \u0645\u0631\u062d\u0628\u0627", "li"), "right", "so does Arabic in a list");
    assert.equal(await direction("Hello.", "p"), "left");
  });
}
