// The list of conversations: search, open, rename, delete and its undoing, export, import.

import { $, el } from "./common.js";
import * as conversation from "./conversation.js";
import * as store from "./store.js";

/** How long a deletion can be undone. */
const UNDO_MS = 12_000;

let opened = () => {};
let timer = null;
/** What the button of the note does. */
let act = null;

const wide = window.matchMedia("(min-width: 64rem)");

/** A note at the bottom, with a button where there is something to do about it. */
export function tell(text, label = "", then = null) {
  $("note-text").textContent = text;
  $("note-act").textContent = label;
  $("note-act").hidden = !label;
  act = then;
  $("note").hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => ($("note").hidden = true), UNDO_MS);
}

/** Shows the list as it is now. */
export async function show() {
  const query = $("search").value;
  const entries = await store.listed(query);
  $("conversations").replaceChildren(...entries.map(item));
  const place = (await store.lasts()) ? "in this browser" : "until this page is closed: the browser's settings forbid more";
  const none = query ? "Nothing was found." : `Conversations are kept ${place}.`;
  $("conversations-none").textContent = entries.length ? "" : none;
  $("search").hidden = !entries.length && !query;
  $("export").hidden = !entries.length;
}

function item(entry) {
  const current = entry.id === conversation.open.id;
  const name = entry.title || "Conversation";
  const open = el("button", { type: "button", class: "quiet title", title: name, "aria-current": current ? "true" : undefined, onclick: () => opened(entry.id) }, name);
  const small = (text, what, then) => el("button", { type: "button", class: "quiet small", title: what, "aria-label": `${what}: ${name}`, onclick: then }, text);
  const li = el("li", { class: current ? "current" : "" }, open);
  li.append(small("✎", "Rename", () => rename(li, entry)), small("↓", "Export", () => download([entry.id])), small("×", "Delete", () => remove(entry)));
  return li;
}

function rename(li, entry) {
  const input = el("input", { value: entry.title, "aria-label": "New title", maxlength: 200 });
  let done = false;
  const end = async (keep) => {
    if (done) return;
    done = true;
    if (keep) await conversation.rename(entry.id, input.value);
    await show();
    document.title = conversation.open.title ? `${conversation.open.title} - nextn` : "nextn";
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    }
  });
  input.addEventListener("blur", () => end(true));
  li.replaceChildren(input);
  input.focus();
  input.select();
}

async function remove(entry) {
  const whole = entry.id === conversation.open.id ? conversation.open : await store.fetched(entry.id);
  await store.remove(entry.id);
  if (entry.id === conversation.open.id) opened(null);
  await show();
  tell(`“${entry.title}” was deleted.`, "Undo", async () => {
    await store.keep(whole);
    opened(whole.id);
    await show();
  });
}

async function download(ids) {
  const all = (await store.everything()).filter(({ id }) => !ids || ids.includes(id));
  const address = URL.createObjectURL(new Blob([conversation.exported(all)], { type: "application/json" }));
  const day = new Date().toISOString().slice(0, 10);
  el("a", { href: address, download: `nextn-conversations-${day}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

async function take(files) {
  for (const file of files) {
    try {
      const n = await conversation.imported(await file.text());
      tell(`${file.name}: ${n === 1 ? "one conversation was" : `${n} conversations were`} imported.`);
    } catch (error) {
      tell(`${file.name}: ${error.message}`);
    }
  }
  await show();
}

/** Opens or shuts the list. */
export function toggle(on = !document.body.classList.contains("listed")) {
  document.body.classList.toggle("listed", on);
  $("open-history").setAttribute("aria-expanded", String(on));
  $("history").hidden = !on;
  if (on && !wide.matches) $("close-history").focus();
}

/** Whether the list lies over the conversation. */
export const isOver = () => document.body.classList.contains("listed") && !wide.matches;

/**
 * Makes the list work; `open` is called with the id of a conversation that is to be shown, or null for an empty one, `elsewhere`
 * with the id of one that another tab has changed.
 */
export function listen(open, elsewhere) {
  opened = (id) => {
    if (isOver()) toggle(false);
    open(id);
  };
  $("open-history").addEventListener("click", () => toggle());
  $("close-history").addEventListener("click", () => {
    toggle(false);
    $("open-history").focus();
  });
  $("search").addEventListener("input", show);
  $("export").addEventListener("click", () => download(null));
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", () => {
    take([...$("import-file").files]);
    $("import-file").value = "";
  });
  $("note-act").addEventListener("click", () => {
    $("note").hidden = true;
    act?.();
  });
  $("note-close").addEventListener("click", () => ($("note").hidden = true));
  store.onChange((id) => {
    show();
    elsewhere(id);
  });
  toggle(wide.matches);
  return show();
}
