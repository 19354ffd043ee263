// Tools of MCP servers: the list of servers in the settings, what a request offers the model, and the question before each call.

import { $, el, remember, remembered } from "./common.js";
import * as conversation from "./conversation.js";
import { keepSettings, settings } from "./conversation.js";
import { McpServer } from "./mcp.js";

/** Servers by their address: `server`, and `state` in words for the user. */
const servers = new Map();
/** Tools by the name that the model is told: `server`, `tool`. */
let offered = new Map();
/** Calls that wait for the user, by their id: each takes true (run) or false (refuse). */
const waiting = new Map();
/** Calls that run. */
const runs = new Set();

const tokens = {
  get: (url) => remembered("sessionStorage", "nextn-mcp-tokens", {})[url] ?? "",
  set: (url, token) => remember("sessionStorage", "nextn-mcp-tokens", { ...remembered("sessionStorage", "nextn-mcp-tokens", {}), [url]: token }),
};

/** Greets the servers that are switched on and leaves the others. */
export async function connect() {
  const wanted = new Set(settings.mcp.filter(({ on }) => on).map(({ url }) => url));
  for (const [url, entry] of servers) {
    if (wanted.has(url) && entry.server.token === tokens.get(url)) continue;
    entry.server.leave();
    servers.delete(url);
  }
  const fresh = [...wanted].filter((url) => !servers.has(url));
  await Promise.all(fresh.map(greet));
  offer();
  show();
}

async function greet(url) {
  const entry = { server: new McpServer(url, tokens.get(url)), state: "connecting …", wrong: false };
  servers.set(url, entry);
  show();
  try {
    await entry.server.connect();
    const n = entry.server.tools.length;
    entry.state = `${entry.server.name}: ${n} ${n === 1 ? "tool" : "tools"}`;
  } catch (error) {
    entry.server.tools = [];
    entry.state = `No tools: ${error.message}.`;
    entry.wrong = true;
  }
}

/** Names all tools; two of one name are told apart by a number. */
function offer() {
  offered = new Map();
  for (const { url } of settings.mcp) {
    const server = servers.get(url)?.server;
    for (const tool of server?.tools ?? []) {
      const plain = tool.name.replace(/[^A-Za-z0-9_-]/g, "_").slice(0, 60) || "tool";
      let name = plain;
      for (let n = 2; offered.has(name); n += 1) name = `${plain}_${n}`;
      offered.set(name, { server, tool });
    }
  }
}

/** The tools as a request has them; undefined where there are none. */
export function offers() {
  if (!offered.size) return undefined;
  return [...offered].map(([name, { tool }]) => ({
    type: "function",
    function: { name, description: tool.description ?? "", parameters: tool.inputSchema ?? { type: "object", properties: {} } },
  }));
}

// ---- calls ----

/**
 * Asks about each call of `message` (the node `at`) and runs those that are allowed; their results follow it in the conversation.
 * `draw` shows the messages anew. Throws `AbortError` when the user stops.
 */
export async function answerCalls(message, at, signal, draw) {
  const asked = message.calls.map((call) => decision(call, signal));
  draw();
  let parent = at;
  for (const [i, call] of message.calls.entries()) {
    const allowed = await asked[i];
    waiting.delete(call.id);
    if (allowed) runs.add(call.id);
    draw();
    try {
      const result = allowed ? await run(call, signal) : { text: "The user refused this call.", failed: true, refused: true };
      signal.throwIfAborted();
      conversation.add(parent, { role: "tool", call: call.id, content: result.text, failed: result.failed, refused: result.refused === true });
      parent = conversation.open.leaf;
    } finally {
      runs.delete(call.id);
    }
    draw();
  }
}

function decision(call, signal) {
  const decided = new Promise((resolve, reject) => {
    waiting.set(call.id, resolve);
    signal.addEventListener("abort", () => {
      waiting.delete(call.id);
      reject(signal.reason);
    });
  });
  // A stop while an earlier call runs is that call's to tell.
  decided.catch(() => {});
  return decided;
}

async function run(call, signal) {
  const found = offered.get(call.name);
  if (!found) return { text: `There is no tool ${call.name}.`, failed: true };
  let args;
  try {
    args = JSON.parse(call.arguments || "{}");
  } catch (error) {
    return { text: `The arguments are not JSON: ${error.message}`, failed: true };
  }
  try {
    return await found.server.call(found.tool.name, args, signal);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { text: `The tool could not be run: ${error.message}.`, failed: true };
  }
}

/** What a call looks like: tool and arguments, as far as they are there, then the question, or the result once there is one. */
export function card(call, result, coming) {
  const from = offered.get(call.name)?.server;
  const title = el("p", { class: "call-title" }, el("b", {}, call.name), from ? ` of ${from.name}` : "");
  const parts = [title, el("pre", { tabindex: "0", role: "region", "aria-label": `Arguments of ${call.name}` }, spread(call.arguments))];
  const decide = waiting.get(call.id);
  if (decide) {
    const button = (text, yes, name) => el("button", { type: "button", class: name, onclick: () => decided(decide, yes) }, text);
    const buttons = el("span", { class: "acts" }, button("Run", true, ""), button("Refuse", false, "quiet"));
    parts.push(el("p", { class: "question" }, el("span", {}, "The model wants to run this tool. Run it?"), buttons));
  } else if (coming) parts.push(el("p", { class: "note" }, "The model is writing this call …"));
  else if (runs.has(call.id)) parts.push(el("p", { class: "note" }, "Running …"));
  else if (!result) parts.push(el("p", { class: "note" }, "Not run."));
  else if (result.refused) parts.push(el("p", { class: "note" }, "Refused."));
  else {
    const text = el("pre", { tabindex: "0", role: "region", "aria-label": `Result of ${call.name}` }, result.content || "(nothing)");
    parts.push(el("details", {}, el("summary", { class: result.failed ? "wrong" : "" }, result.failed ? "Error" : "Result"), text));
  }
  return el("section", { class: "call", "aria-label": `Tool call: ${call.name}` }, ...parts);
}

function decided(decide, yes) {
  // The button is gone then: whoever works by keyboard goes on from the conversation.
  $("log").focus({ preventScroll: true });
  decide(yes);
}

/** Arguments with a line for each. */
function spread(text) {
  try {
    return JSON.stringify(JSON.parse(text || "{}"), null, 2);
  } catch {
    return text;
  }
}

// ---- the settings ----

/** Shows the servers in the settings' dialog. */
function show() {
  $("mcp-list").replaceChildren(...settings.mcp.map(row));
  const n = offered.size;
  $("tools-note").textContent = n ? `The model may ask for ${n} ${n === 1 ? "tool" : "tools"}.` : "";
}

function row(entry) {
  const state = servers.get(entry.url);
  const on = el("input", { type: "checkbox", role: "switch", checked: entry.on });
  on.addEventListener("change", () => {
    entry.on = on.checked;
    keepSettings();
    connect();
  });
  const words = entry.on ? (state?.state ?? "") : "off";
  const tools = entry.on ? (state?.server.tools ?? []).map(({ name }) => name).join(", ") : "";
  const note = el("span", { class: state?.wrong && entry.on ? "wrong" : "note", title: tools || undefined }, words);
  const label = el("label", { class: "switch" }, on, el("span", {}, entry.url));
  const again = el("button", { type: "button", class: "quiet", onclick: () => retry(entry.url) }, "Ask again");
  const gone = el("button", { type: "button", class: "quiet", "aria-label": `Remove ${entry.url}`, onclick: () => remove(entry.url) }, "×");
  return el("li", {}, label, note, el("span", { class: "acts" }, ...(state?.wrong && entry.on ? [again] : []), gone));
}

function retry(url) {
  servers.delete(url);
  connect();
}

function remove(url) {
  settings.mcp = settings.mcp.filter((entry) => entry.url !== url);
  tokens.set(url, "");
  keepSettings();
  connect();
}

function add() {
  const text = $("mcp-url").value.trim();
  if (!text) return;
  let url;
  try {
    url = new URL(text);
    if (!/^https?:$/.test(url.protocol)) throw new Error();
  } catch {
    $("mcp-wrong").textContent = "An address such as http://127.0.0.1:3000/mcp is expected.";
    $("mcp-wrong").hidden = false;
    return;
  }
  $("mcp-wrong").hidden = true;
  tokens.set(url.href, $("mcp-token").value.trim());
  const known = settings.mcp.find((entry) => entry.url === url.href);
  if (known) known.on = true;
  else settings.mcp.push({ url: url.href, on: true });
  $("mcp-url").value = $("mcp-token").value = "";
  keepSettings();
  buttons();
  connect();
}

const buttons = () => ($("mcp-add").hidden = !$("mcp-url").value.trim());

/** Makes the settings of servers work, and greets those that are kept. */
export function listen() {
  $("mcp-url").addEventListener("input", buttons);
  for (const name of ["mcp-url", "mcp-token"]) {
    $(name).addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      add();
    });
  }
  $("mcp-add").addEventListener("click", add);
  connect();
}
