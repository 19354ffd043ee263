// The chat page: messages on the screen, the box to write in, keys, and the stream of an answer.

import * as attachments from "./attachments.js";
import { $, Refused, call, el, events, key, switchTheme } from "./common.js";
import { NUMBERS, emptyAnswer, extend, keepMessages, keepSettings, messages, request, settings } from "./conversation.js";
import { copied, plain, render } from "./markdown.js";
import { Speculation } from "./speculation.js";

const log = $("log");
const ask = $("ask");
/** Ends the answer that is coming; null when none is. */
let running = null;
/** Number of the message that is being edited. */
let editing = null;

// ---- what is on the screen ----

function draw() {
  log.replaceChildren(...messages.map(article));
  $("empty").hidden = messages.length > 0;
  document.body.classList.toggle("tinted", settings.tint);
}

function article(message, i) {
  const mine = message.role === "user";
  const node = el("article", { class: message.role, "aria-label": mine ? "You" : "Model" });
  node.append(el("h2", { class: "who" }, mine ? "You" : "Model"));
  const body = el("div", { class: "body" });
  node.append(body);
  fill(body, message);
  const button = (text, act, title) => el("button", { type: "button", class: "quiet", onclick: act, title }, text);
  const copy = button("Copy", () => copied(copy, message.content));
  const acts = [copy];
  if (mine) acts.push(button("Edit", () => edit(i)));
  else if (i === messages.length - 1) acts.push(button("Again", again, "Answer again (Alt+R)"));
  node.append(el("footer", {}, el("span", { class: "acts" }, ...acts), el("span", { class: "sum" }, message.figures ?? "")));
  return node;
}

/** Shows what there is of a message; keeps the thinking open or shut as it was. */
function fill(body, message) {
  if (message.role === "user") {
    const parts = attachments.thumbnails(message.images ?? []);
    if (message.lost) parts.push(el("p", { class: "note" }, "Images of this message were too large to be kept when the page was loaded again."));
    body.replaceChildren(...parts, el("p", { class: "plain" }, message.content));
    return;
  }
  const open = body.querySelector("details.thinking")?.open ?? false;
  const parts = [];
  if (message.reasoning) {
    const thinks = running && !message.content && message === messages.at(-1);
    const text = el("div", { class: "plain" });
    text.append(plain(message.reasoning, message.reasoningDepths));
    const thinking = el("details", { class: "thinking" }, el("summary", {}, thinks ? "Thinking ..." : "Thinking"), text);
    thinking.open = open;
    parts.push(thinking);
  }
  const text = el("div", { class: "text" });
  text.append(render(message.content, message.depths));
  parts.push(text);
  if (message.progress) parts.push(el("p", { class: "note" }, message.progress));
  if (message.reason === "length") parts.push(el("p", { class: "note" }, "Cut: as many tokens as were asked for, or as fit."));
  if (message.error) parts.push(el("p", { class: "wrong" }, message.error));
  body.replaceChildren(...parts);
}

const isAtEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80;
const toEnd = () => window.scrollTo(0, document.documentElement.scrollHeight);

// ---- an answer ----

async function answer() {
  const body = request();
  const message = emptyAnswer();
  messages.push(message);
  running = new AbortController();
  draw();
  toEnd();
  busy(true);
  const speculation = new Speculation();
  const target = log.lastElementChild.querySelector(".body");
  let drawn = true;
  const show = () => {
    if (!drawn) return;
    drawn = false;
    requestAnimationFrame(() => {
      const follow = isAtEnd();
      drawn = true;
      fill(target, message);
      speculation.show();
      if (follow) toEnd();
    });
  };
  try {
    const response = await call("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal: running.signal });
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Refused(0, chunk.error.message);
      const progress = chunk.prompt_progress;
      message.progress = progress && progress.processed < progress.total ? `Reading: ${progress.processed} of ${progress.total} tokens` : "";
      extend(message, chunk);
      speculation.take(chunk.drafts, chunk.timings);
      show();
    }
    $("status").textContent = "The answer is complete.";
  } catch (error) {
    if (error.name === "AbortError") $("status").textContent = "Stopped.";
    else failed(error, message);
  }
  message.progress = "";
  message.figures = speculation.summary();
  running = null;
  busy(false);
  keepMessages();
  const follow = isAtEnd();
  draw();
  speculation.show();
  if (follow) toEnd();
}

function failed(error, message) {
  message.error = error.message;
  $("status").textContent = error.message;
  if (error.status === 401) needKey();
}

function busy(on) {
  log.setAttribute("aria-busy", String(on));
  $("send").hidden = on;
  $("stop").hidden = !on;
  for (const button of log.querySelectorAll("footer button")) button.disabled = on;
}

const stop = () => running?.abort();

function send() {
  const text = ask.value.trim();
  if ((!text && !attachments.count()) || running) return;
  if (editing !== null) messages.length = editing;
  leaveEditing();
  const images = attachments.taken();
  messages.push(images.length ? { role: "user", content: text, images } : { role: "user", content: text });
  ask.value = "";
  grow();
  answer();
}

function again() {
  if (running || messages.at(-1)?.role !== "assistant") return;
  messages.pop();
  answer();
}

function edit(i) {
  if (running) return;
  editing = i;
  ask.value = messages[i].content;
  attachments.put([...(messages[i].images ?? [])]);
  $("send").textContent = "Send again";
  [...log.children].forEach((node, k) => node.classList.toggle("to-go", k >= i));
  grow();
  ask.focus();
}

function leaveEditing() {
  if (editing === null) return;
  editing = null;
  $("send").textContent = "Send";
  for (const node of log.children) node.classList.remove("to-go");
}

function fresh() {
  stop();
  leaveEditing();
  messages.length = 0;
  keepMessages();
  $("panel").hidden = true;
  draw();
  ask.focus();
}

// ---- settings ----

function openSettings() {
  const dialog = $("settings");
  if (dialog.open) return;
  for (const name of ["system", "thinking", "n_max", ...NUMBERS]) $(name).value = settings[name] ?? "";
  $("tint").checked = settings.tint;
  $("key").value = key.get();
  dialog.showModal();
}

function takeSettings() {
  for (const name of ["system", "thinking", "n_max", ...NUMBERS]) settings[name] = $(name).value;
  settings.tint = $("tint").checked;
  keepSettings();
  const changed = key.get() !== $("key").value.trim();
  key.set($("key").value.trim());
  $("key-wrong").hidden = true;
  document.body.classList.toggle("tinted", settings.tint);
  if (changed) hello();
  ask.focus();
}

function needKey() {
  openSettings();
  $("key-wrong").hidden = false;
  $("key").focus();
}

/** Who answers here. */
async function hello() {
  try {
    const models = await (await call("/v1/models")).json();
    const meta = models.data[0]?.meta;
    const about = [models.data.map((model) => model.id).join(", ")];
    if (meta) about.push(meta.quantization, meta.nextn ? "NextN layer" : "no NextN layer");
    $("model").textContent = about.filter(Boolean).join(" · ");
    $("model").title = $("model").textContent;
    attachments.allow((await (await call("/props")).json()).modalities.vision);
  } catch (error) {
    $("model").textContent = error.message;
    if (error.status === 401) needKey();
  }
}

// ---- keys and buttons ----

function grow() {
  ask.style.height = "auto";
  ask.style.height = `${Math.min(ask.scrollHeight + 2, window.innerHeight * 0.4)}px`;
}

const SHORTCUTS = {
  KeyN: fresh,
  KeyS: openSettings,
  KeyR: again,
  KeyL: switchTheme,
  KeyD: () => {
    settings.tint = !settings.tint;
    keepSettings();
    document.body.classList.toggle("tinted", settings.tint);
    $("status").textContent = settings.tint ? "Tints on." : "Tints off.";
  },
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, textarea, select");
  if (event.altKey && !event.ctrlKey && !event.metaKey && SHORTCUTS[event.code] && !$("settings").open) {
    event.preventDefault();
    SHORTCUTS[event.code]();
  } else if (event.key === "Escape" && !$("settings").open) {
    if (running) stop();
    else if (editing !== null) {
      leaveEditing();
      ask.value = "";
      attachments.put([]);
      grow();
    }
  } else if (event.key === "/" && !typing && !$("settings").open) {
    event.preventDefault();
    ask.focus();
  }
});

ask.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !ask.value) {
    const last = messages.findLastIndex((message) => message.role === "user");
    if (last >= 0 && !running) {
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
$("open-settings").addEventListener("click", openSettings);
$("theme").addEventListener("click", switchTheme);
$("settings").addEventListener("close", takeSettings);

attachments.listen();
draw();
hello();
ask.focus();
