// The open conversation and the settings as data: its messages and their versions, what is sent, what a stream adds to a message.

import { remember, remembered } from "./common.js";
import * as store from "./store.js";

/** Settings that are numbers and go into requests under their own names. */
export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens", "thinking_budget_tokens"];
/** Settings that a preset holds. */
export const OF_PRESETS = ["system", "thinking", "n_max", ...NUMBERS];

const DEFAULTS = { system: "", thinking: "", n_max: "", tint: true, name: "", model: "", mcp: [] };

/** What the user set. */
export const settings = { ...DEFAULTS, ...remembered("localStorage", "nextn-settings", {}) };

/** Keeps the settings. */
export const keepSettings = () => remember("localStorage", "nextn-settings", settings);

/** Named groups of settings. */
export const presets = remembered("localStorage", "nextn-presets", {});
/** Keeps the presets. */
export const keepPresets = () => remember("localStorage", "nextn-presets", presets);

/** An id that no other conversation has. */
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

const empty = () => ({ id: newId(), title: "", named: false, created: Date.now(), changed: Date.now(), nodes: [], leaf: -1 });

/**
 * The open conversation. Its `nodes` are messages of all versions, each after its `parent` (a number; -1: none): `role`, `content`,
 * for the user's `images` (`name`, and `data` as a data URI) and `texts` (`name`, `text`), and for the model's `reasoning`,
 * `thinkingMs`, `depths`, `reasoningDepths`, `figures`, `model`, `calls` of tools (`id`, `name`, `arguments` as JSON); a message
 * with the role `tool` is the result of one `call`. `leaf` is the last message of the version that is shown.
 */
export let open = empty();

/** Numbers of the messages of the version that is shown, the first one first. */
export function path() {
  const numbers = [];
  for (let i = open.leaf; i >= 0; i = open.nodes[i].parent) numbers.unshift(i);
  return numbers;
}

/** Those of them that have a place of their own; a tool's result is shown with its call. */
export const shown = () => path().filter((i) => open.nodes[i].role !== "tool");

/** The result of a tool's call in the version that is shown. */
export const resultOf = (call) => messages().find((node) => node.role === "tool" && node.call === call.id);

/** The messages of that version. */
export const messages = () => path().map((i) => open.nodes[i]);

/** All versions of the message `i`, as numbers. */
export const versions = (i) => open.nodes.flatMap((node, k) => (node.parent === open.nodes[i].parent && node.role === open.nodes[i].role ? [k] : []));

/** Adds a message after `parent`, as its newest version, and shows it. */
export function add(parent, message) {
  open.nodes.push({ ...message, parent });
  open.leaf = open.nodes.length - 1;
  if (!open.title && message.role === "user") open.title = titleOf(message);
  return open.nodes[open.leaf];
}

/** Shows the version of a message that is number `i`, with what follows it: the newest each time. */
export function show(i) {
  open.leaf = i;
  for (;;) {
    const next = open.nodes.findLastIndex((node) => node.parent === open.leaf);
    if (next < 0) return;
    open.leaf = next;
  }
}

/** Shows the conversation up to the message `i`. */
export const cutAfter = (i) => (open.leaf = i);

function titleOf({ content, images, texts }) {
  const words = content.trim().replace(/\s+/g, " ");
  const title = words || texts?.[0]?.name || images?.[0]?.name || "Conversation";
  return title.length > 60 ? `${title.slice(0, 59)}…` : title;
}

/** Begins an empty conversation. */
export function begin() {
  open = empty();
  remember("sessionStorage", "nextn-open", null);
}

/** Opens a kept conversation if that is wanted `still`; false where there is none of this id. */
export async function load(id, still = () => true) {
  const found = id && (await store.fetched(id));
  if (!still()) return false;
  if (found) open = found;
  remember("sessionStorage", "nextn-open", found ? id : null);
  return Boolean(found);
}

/** The conversation that this tab had open when it was loaded again. */
export const lastOpen = () => remembered("sessionStorage", "nextn-open", null);

/**
 * Keeps the open conversation, once there is something in it. Where another tab has changed the kept one, this one becomes a
 * conversation of its own; false then.
 */
export async function keep() {
  const it = open;
  if (!it.nodes.length) return true;
  it.changed = Date.now();
  const own = await store.keep(it);
  if (!own) {
    Object.assign(it, { id: newId(), revision: 0, title: `${it.title} (2)` });
    await store.keep(it);
  }
  if (it === open) remember("sessionStorage", "nextn-open", it.id);
  return own;
}

/** Keeps a conversation that is not open any more, unless it was deleted meanwhile. */
export async function keepAside(conversation) {
  if (await store.fetched(conversation.id)) await store.keep(conversation);
}

/** Gives a conversation a title of the user's. */
export async function rename(id, title) {
  const it = id === open.id ? open : await store.fetched(id);
  if (!it || !title.trim()) return;
  Object.assign(it, { title: title.trim().slice(0, 200), named: true });
  await store.keep(it);
}

const FORMAT = "nextn-conversations";

/** The text of a file with these conversations. */
export const exported = (conversations) => JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);

/** Keeps the conversations of such a file, and gives their number. One that is here already is kept beside its like. Throws words for the user. */
export async function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is not JSON (${error.message}): choose one that this page has exported.`);
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error(`The file has no "format": "${FORMAT}": choose one that this page has exported.`);
  }
  const sound = file.conversations.map(checked);
  for (const it of sound) {
    if (await store.fetched(it.id)) it.id = newId();
    await store.keep(it);
  }
  return sound.length;
}

/** A conversation of a file, with what this page knows and nothing else. */
function checked(it, n) {
  const wrong = (what) => new Error(`Conversation ${n + 1} of the file: ${what}.`);
  if (!Array.isArray(it?.nodes) || !it.nodes.length) throw wrong("it has no messages (nodes)");
  const text = (value) => (typeof value === "string" ? value : "");
  const list = (value, ...fields) => (Array.isArray(value) ? value.map((one) => Object.fromEntries(fields.map((name) => [name, text(one?.[name])]))) : undefined);
  const numbers = (value) => (Array.isArray(value) ? value.map((depth) => Number(depth) || 0) : []);
  const nodes = it.nodes.map((node, i) => {
    if (!["user", "assistant", "tool"].includes(node?.role)) throw wrong(`message ${i + 1} has the role ${JSON.stringify(node?.role)}; user, assistant or tool is expected`);
    if (!Number.isInteger(node.parent) || node.parent < -1 || node.parent >= i) throw wrong(`message ${i + 1} follows message ${node.parent}, which is not before it`);
    return {
      role: node.role, parent: node.parent, content: text(node.content), reasoning: text(node.reasoning), error: text(node.error),
      figures: text(node.figures), model: text(node.model), reason: text(node.reason), thinkingMs: Number(node.thinkingMs) || 0,
      depths: numbers(node.depths), reasoningDepths: numbers(node.reasoningDepths),
      call: text(node.call), failed: node.failed === true, refused: node.refused === true, calls: list(node.calls, "id", "name", "arguments"),
      images: list(node.images, "name", "data")?.filter(({ data }) => data.startsWith("data:image/")), texts: list(node.texts, "name", "text"),
    };
  });
  const leaf = Number.isInteger(it.leaf) && it.leaf >= 0 && it.leaf < nodes.length ? it.leaf : nodes.length - 1;
  const id = /^[0-9a-f]{24}$/.test(it.id) ? it.id : newId();
  return { id, title: text(it.title) || "Imported", named: Boolean(it.named), created: Number(it.created) || Date.now(), changed: Number(it.changed) || Date.now(), nodes, leaf };
}

/** An answer before its first word. */
export const emptyAnswer = () => ({
  role: "assistant", content: "", reasoning: "", depths: [], reasoningDepths: [], thinkingMs: 0, figures: "", model: "", error: "",
});

const part = ({ data }) => ({ type: "image_url", image_url: { url: data } });

/** A file's text as the model gets it: within a fence that the text does not close. */
function quoted({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}\n\n`;
}

/** A message as a request has it; a call that has no result gets one that says so, since templates expect a result of each. */
function sentAs({ role, content, reasoning, images, texts, calls, call }) {
  if (role === "tool") return [{ role, tool_call_id: call, content }];
  const all = (texts ?? []).map(quoted).join("") + content;
  const message = {
    role,
    content: images?.length ? [...images.map(part), { type: "text", text: all }] : all,
    ...(reasoning && { reasoning_content: reasoning }),
  };
  if (!calls?.length) return [message];
  message.tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text || "{}" } }));
  const open = calls.filter((one) => !resultOf(one));
  return [message, ...open.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "The call was not made." }))];
}

/** The request for the next answer, with these tools where there are some. */
export function request(tools) {
  const sent = messages()
    .filter((message) => message.role !== "assistant" || message.content || message.reasoning || message.calls?.length)
    .flatMap(sentAs);
  if (settings.system.trim()) sent.unshift({ role: "system", content: settings.system });
  const body = {
    messages: sent,
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    return_drafts: true,
    return_progress: true,
  };
  if (tools) body.tools = tools;
  if (settings.model) body.model = settings.model;
  for (const name of NUMBERS) {
    if (settings[name] !== undefined && settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.n_max !== "") body["speculative.n_max"] = Number(settings.n_max);
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}

/** Adds a chunk of the stream, `ms` after the request, to an answer. */
export function extend(answer, chunk, ms) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  if (chunk.model) answer.model = chunk.model;
  const add = (text, depths) => {
    const parts = chunk.drafts?.parts?.length ? chunk.drafts.parts : [{ text, depth: 0 }];
    for (const part of parts) for (let i = 0; i < part.text.length; i += 1) depths.push(part.depth);
  };
  if (delta.reasoning_content) {
    answer.thinkingSince ??= ms;
    answer.reasoning += delta.reasoning_content;
    answer.thinkingMs = ms - answer.thinkingSince;
    add(delta.reasoning_content, answer.reasoningDepths);
  }
  if (delta.content) {
    answer.content += delta.content;
    add(delta.content, answer.depths);
  }
  for (const part of delta.tool_calls ?? []) {
    answer.calls ??= [];
    const call = (answer.calls[part.index ?? 0] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  const reason = chunk.choices?.[0]?.finish_reason;
  if (reason) answer.reason = reason;
}
