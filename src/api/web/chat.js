// The chat page: messages on the screen, the box to write in, keys, and the stream of an answer.

import * as attachments from "./attachments.js";
import { $, Lost, Refused, call, el, events, figure, key, switchTheme } from "./common.js";
import * as connection from "./connection.js";
import * as conversation from "./conversation.js";
import { NUMBERS, keepSettings, settings } from "./conversation.js";
import * as history from "./history.js";
import { canCopy, copied, plain, render } from "./markdown.js";
import * as models from "./models.js";
import * as presets from "./presets.js";
import { Speculation } from "./speculation.js";
import * as tools from "./tools.js";

const log = $("log");
const ask = $("ask");
/** Ends the answer that is coming; null when none is. */
let running = null;
/** The message that is coming. */
let coming = null;
/** Number of the message that is being edited. */
let editing = null;
/** A phone or a tablet: its keyboard comes up where the box has the focus, and has no other key for a new line than Enter. */
const touch = window.matchMedia("(pointer: coarse)");
/** How often a conversation is kept while an answer comes. */
const KEEP_MS = 2000;

// ---- what is on the screen ----

function draw() {
  const shown = conversation.shown();
  log.replaceChildren(...shown.map((i, at) => article(i, at === shown.length - 1)));
  $("empty").hidden = shown.length > 0;
  $("new").hidden = shown.length === 0;
  document.title = conversation.open.title ? `${conversation.open.title} - nextn` : "nextn";
  showEdited();
  showTints();
}

const button = (text, act, title) => el("button", { type: "button", class: "quiet", onclick: act, title }, text);

function article(i, last) {
  const message = conversation.open.nodes[i];
  const mine = message.role === "user";
  const who = mine ? settings.name.trim() || "You" : message.model || models.chosen()?.id || "Model";
  const node = el("article", { class: message.role, "aria-label": who });
  const body = el("div", { class: "body" });
  node.append(el("h2", { class: "who" }, who), body);
  fill(body, message);
  const acts = [];
  const copy = button("Copy", () => copied(copy, message.content));
  if (canCopy && message.content && message !== coming) acts.push(copy);
  if (!running && mine) acts.push(button("Edit", () => edit(i)));
  if (!running && !mine && last) acts.push(button(message.error ? "Retry" : "Again", again, "Answer again (Alt+R)"));
  node.append(el("footer", {}, ...versions(i), el("span", { class: "acts" }, ...acts), el("span", { class: "sum" }, message.figures ?? "")));
  return node;
}

/** Buttons to the other versions of a message, where there are some. */
function versions(i) {
  const all = conversation.versions(i);
  if (all.length < 2) return [];
  const at = all.indexOf(i);
  const to = (n, sign, name) => {
    const step = el("button", { type: "button", class: "quiet", "aria-label": name, disabled: running !== null || all[n] === undefined }, sign);
    step.addEventListener("click", () => {
      const place = conversation.shown().indexOf(i);
      conversation.show(all[n]);
      leaveEditing();
      draw();
      // Whoever works by keyboard goes on from the same place.
      log.children[place]?.querySelector(".versions button:enabled")?.focus();
      kept();
    });
    return step;
  };
  const where = el("span", {}, `${at + 1} of ${all.length}`);
  return [el("span", { class: "versions", role: "group", "aria-label": "Versions" }, to(at - 1, "‹", "Version before"), where, to(at + 1, "›", "Next version"))];
}

/** Shows what there is of a message; keeps the thinking open or shut as it was. */
function fill(body, message) {
  if (message.role === "user") {
    const parts = attachments.thumbnails([...(message.images ?? []), ...(message.texts ?? [])]);
    if (message.content) parts.push(el("p", { class: "plain" }, message.content));
    body.replaceChildren(...parts);
    return;
  }
  const before = body.querySelector("details.thinking");
  const parts = [];
  if (message.reasoning) {
    const thinks = message === coming && !message.content;
    const seconds = message.thinkingMs < 100 ? "less than 0.1 s" : `${figure(message.thinkingMs / 1000, 2)} s`;
    const words = thinks ? `Thinking … ${seconds}` : message.thinkingMs ? `Thought for ${seconds}` : "Thinking";
    const text = el("div", { class: "plain" });
    text.append(plain(message.reasoning, message.reasoningDepths));
    const thinking = el("details", { class: "thinking" }, el("summary", {}, words), text);
    // Whoever opened or shut it has the last word; else it is open while the model thinks.
    thinking.open = before?.dataset.chosen ? before.open : thinks;
    if (before?.dataset.chosen) thinking.dataset.chosen = "yes";
    thinking.firstChild.addEventListener("click", () => (thinking.dataset.chosen = "yes"));
    parts.push(thinking);
  }
  const text = el("div", { class: "text" });
  text.append(render(message.content, message.depths));
  parts.push(text);
  for (const call of message.calls ?? []) parts.push(tools.card(call, conversation.resultOf(call), message === coming));
  if (message.progress) parts.push(el("p", { class: "note" }, message.progress));
  if (message.reason === "length") parts.push(el("p", { class: "note" }, "Cut: as many tokens as were asked for, or as fit."));
  if (message.error) parts.push(el("p", { class: "wrong" }, message.error));
  body.replaceChildren(...parts);
}

const isAtEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80;
const toEnd = () => window.scrollTo(0, document.documentElement.scrollHeight);

/** Keeps the conversation; says so where it cannot be kept, or has become one of its own. `listed`: the list shows it, too. */
async function kept(listed = true) {
  try {
    if (!(await conversation.keep())) history.tell("Another tab goes on with this conversation: here it is one of its own now.");
    if (listed) await history.show();
  } catch (error) {
    history.tell(`This conversation could not be kept in the browser (${error.message}). Export it, or delete others.`);
  }
}

// ---- an answer ----

/** An answer, and while it calls tools their results and the next one. */
async function answer() {
  const mine = conversation.open;
  running = new AbortController();
  busy(true);
  for (let more = true; more; ) more = await turn(mine, running.signal);
  running = null;
  busy(false);
  if (mine !== conversation.open) {
    await conversation.keepAside(mine).catch(() => {});
    return;
  }
  await kept();
  following(draw);
  models.ask().catch(connection.note);
}

/** What is drawn meanwhile; the page stays at its end where it is there. */
function following(work) {
  const follow = isAtEnd();
  work();
  if (follow) toEnd();
}

/** One answer of the model; true if it called tools that have results now. */
async function turn(mine, signal) {
  const body = conversation.request(tools.offers());
  const message = conversation.add(conversation.open.leaf, conversation.emptyAnswer());
  const at = conversation.open.leaf;
  coming = message;
  draw();
  toEnd();
  kept();
  const speculation = new Speculation();
  const target = log.lastElementChild;
  let due = 0;
  let waiting = false;
  const show = () => {
    if (waiting) return;
    waiting = true;
    const work = () => {
      const follow = isAtEnd();
      const start = performance.now();
      waiting = false;
      if (!target.isConnected) return;
      target.querySelector(".who").textContent = message.model || target.querySelector(".who").textContent;
      fill(target.querySelector(".body"), message);
      speculation.show();
      if (follow) toEnd();
      // Long answers take long to draw: most of the time is the stream's.
      due = performance.now() + 3 * (performance.now() - start);
    };
    const early = due - performance.now();
    if (early > 0) setTimeout(() => requestAnimationFrame(work), early);
    else requestAnimationFrame(work);
  };
  const start = performance.now();
  let lastKept = start;
  let whole = false;
  try {
    const response = await call("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Refused(0, chunk.error.message);
      const progress = chunk.prompt_progress;
      message.progress = progress && progress.processed < progress.total ? `Reading: ${progress.processed} of ${progress.total} tokens` : "";
      conversation.extend(message, chunk, performance.now() - start);
      speculation.take(chunk.drafts, chunk.timings);
      show();
      if (performance.now() - lastKept > KEEP_MS) {
        lastKept = performance.now();
        kept(false);
      }
    }
    whole = true;
    $("status").textContent = "The answer is complete.";
  } catch (error) {
    if (error.name === "AbortError") $("status").textContent = "Stopped.";
    else failed(error, message);
  }
  message.progress = "";
  message.figures = speculation.end();
  delete message.thinkingSince;
  coming = null;
  // Half a call is none.
  if (!whole) delete message.calls;
  if (mine !== conversation.open) return false;
  speculation.show();
  if (!message.calls?.length) return false;
  $("status").textContent = "The model wants to run a tool: Run or Refuse.";
  try {
    await tools.answerCalls(message, at, signal, () => following(draw));
    return true;
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    $("status").textContent = "Stopped.";
    return false;
  }
}

function failed(error, message) {
  connection.note(error);
  message.error = error instanceof Lost && message.content ? "The connection to nextn-server was lost while this answer came." : error.message;
  $("status").textContent = message.error;
  if (error.status === 401) needKey();
}

function busy(on) {
  log.setAttribute("aria-busy", String(on));
  $("send").hidden = on;
  $("stop").hidden = !on;
  sendable();
}

/** The button to send works when there is something to send. */
function sendable() {
  $("send").disabled = !ask.value.trim() && !attachments.count();
}

const stop = () => running?.abort();

function send() {
  const text = ask.value.trim();
  if ((!text && !attachments.count()) || running) return;
  // What is edited gets a new version beside the old one.
  const parent = editing === null ? conversation.open.leaf : conversation.open.nodes[editing].parent;
  leaveEditing();
  conversation.add(parent, { role: "user", content: text, ...attachments.taken() });
  clear();
  answer();
}

function clear() {
  ask.value = "";
  attachments.put({});
  grow();
}

function again() {
  const last = conversation.open.nodes[conversation.open.leaf];
  if (running || last?.role !== "assistant") return;
  leaveEditing();
  conversation.cutAfter(last.parent);
  answer();
}

function edit(i) {
  if (running) return;
  editing = i;
  const message = conversation.open.nodes[i];
  ask.value = message.content;
  attachments.put(message);
  $("send").textContent = "Send again";
  showEdited();
  grow();
  ask.focus();
}

function leaveEditing() {
  if (editing === null) return;
  editing = null;
  $("send").textContent = "Send";
  showEdited();
}

/** Makes faint what an edited message will replace. */
function showEdited() {
  const from = conversation.shown().indexOf(editing);
  [...log.children].forEach((node, k) => node.classList.toggle("to-go", from >= 0 && k >= from));
}

/** Shows the conversation with this id, or an empty one. */
async function openOne(id, typing = !touch.matches) {
  stop();
  leaveEditing();
  clear();
  if (!(id && (await conversation.load(id)))) conversation.begin();
  $("panel").hidden = true;
  draw();
  await history.show();
  if (id) toEnd();
  if (typing) ask.focus();
}

const fresh = () => openOne(null, true);

/** Another tab has changed a conversation: where it is the open one, shows what became of it. */
async function changedElsewhere(id) {
  const still = () => !running && conversation.open.id === id;
  if (still() && (await conversation.load(id, still))) following(draw);
}

// ---- settings ----

function openSettings() {
  const dialog = $("settings");
  if (dialog.open) return;
  for (const name of ["system", "thinking", "n_max", "name", ...NUMBERS]) $(name).value = settings[name] ?? "";
  $("key").value = key.get();
  presets.show();
  dialog.showModal();
}

function takeSettings() {
  for (const name of ["system", "thinking", "n_max", "name", ...NUMBERS]) settings[name] = $(name).value;
  keepSettings();
  const changed = key.get() !== $("key").value.trim();
  key.set($("key").value.trim());
  $("key-wrong").hidden = true;
  if (!running) draw();
  if (changed) hello();
  if (!touch.matches) ask.focus();
}

function needKey() {
  openSettings();
  $("key-wrong").hidden = false;
  $("key").focus();
}

/** Who answers here. */
async function hello() {
  try {
    await models.ask();
    await about();
  } catch (error) {
    if (connection.note(error)) return;
    $("model").textContent = error.message;
    if (error.status === 401) needKey();
  }
}

/** What the model that answers can do. */
async function about() {
  const model = models.chosen();
  try {
    const props = await (await call(`/props${model ? `?model=${encodeURIComponent(model.id)}` : ""}`)).json();
    attachments.allow(props.modalities.vision);
    $("to-dashboard").hidden = !props.endpoint_metrics;
  } catch (error) {
    // A model that is not loaded says nothing of itself.
    if (error.status !== 503) throw error;
    attachments.allow(false);
  }
}

// ---- tints ----

function showTints() {
  document.body.classList.toggle("tinted", settings.tint);
  $("tint-switch").checked = settings.tint;
  $("tint-legend").hidden = !settings.tint;
}

function tint(on) {
  settings.tint = on;
  keepSettings();
  showTints();
  $("status").textContent = on ? "Tints on." : "Tints off.";
}

/** What the tints mean. */
function legend() {
  const chips = [1, 2, 3, 4, 5, 6, 7].map((depth) => el("span", { class: `chip d${depth}` }, String(depth)));
  const words = (text) => el("span", { class: "words" }, text);
  $("tint-legend").replaceChildren(words("accepted, drafted"), ...chips, el("span", { class: "chip d8" }, "8+"), words("tokens ahead"));
}

// ---- keys and buttons ----

function grow() {
  ask.style.height = "auto";
  ask.style.height = `${Math.min(ask.scrollHeight + 2, window.innerHeight * 0.4)}px`;
  sendable();
}

/** What the Enter key of a phone's keyboard says. */
const showKey = () => (ask.enterKeyHint = touch.matches ? "enter" : "send");

const SHORTCUTS = {
  KeyC: () => history.toggle(),
  KeyF: () => {
    history.toggle(true);
    $("search").focus();
  },
  KeyN: fresh,
  KeyS: openSettings,
  KeyR: again,
  KeyL: switchTheme,
  KeyD: () => tint(!settings.tint),
};

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input, textarea, select");
  if (event.altKey && !event.ctrlKey && !event.metaKey && SHORTCUTS[event.code]) {
    event.preventDefault();
    SHORTCUTS[event.code]();
  } else if (event.key === "Escape") {
    if (running) stop();
    else if (editing !== null) {
      leaveEditing();
      clear();
    } else if (history.isOver()) history.toggle(false);
  } else if (event.key === "/" && !typing) {
    event.preventDefault();
    ask.focus();
  } else if (event.key === "?" && (!typing || (event.target === ask && !ask.value))) {
    event.preventDefault();
    $("keys").showModal();
  }
});

ask.addEventListener("keydown", (event) => {
  // 229: Safari has ended the composition before it tells of the Enter that did so.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229 && !touch.matches) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !ask.value) {
    const last = conversation.path().findLast((i) => conversation.open.nodes[i].role === "user");
    if (last !== undefined && !running) {
      event.preventDefault();
      edit(last);
    }
  }
});
ask.addEventListener("input", grow);
$("compose").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", fresh);
$("retry").addEventListener("click", connection.retry);
$("open-settings").addEventListener("click", openSettings);
$("open-keys").addEventListener("click", () => $("keys").showModal());
$("theme").addEventListener("click", switchTheme);
$("settings").addEventListener("close", takeSettings);
$("tint-switch").addEventListener("change", () => tint($("tint-switch").checked));
$("pick").addEventListener("change", () => models.choose($("pick").value).catch(connection.note));

attachments.listen();
attachments.whenChanged(sendable);
attachments.allow(false);
connection.whenBack(hello);
models.whenChanged(() => {
  if (!running) draw();
  about().catch(connection.note);
});
presets.listen();
tools.listen();
legend();
draw();
hello();
history.listen(openOne, changedElsewhere).then(() => {
  const last = conversation.lastOpen();
  if (last) openOne(last);
});
touch.addEventListener("change", showKey);
showKey();
if (!touch.matches) ask.focus();
