// What both pages share: elements, light and dark, the API key, requests.

/** The element with this id. */
export const $ = (id) => document.getElementById(id);

/** A new element. Children are elements or texts; texts stay texts whatever is in them. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === undefined) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** A new element of a drawing. */
export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** What a store of the browser's did not take: for as long as the page is open. */
const aside = new Map();

/**
 * What is kept under a name in one of the browser's stores ("localStorage", "sessionStorage"). Some settings forbid them, and then
 * already naming one throws.
 */
export function remembered(store, name, fallback) {
  if (aside.has(name)) return aside.get(name);
  try {
    return JSON.parse(window[store].getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Keeps a value under a name; where the store is full or forbidden, until the page is closed. */
export function remember(store, name, value) {
  try {
    window[store].setItem(name, JSON.stringify(value));
    aside.delete(name);
  } catch {
    aside.set(name, value);
  }
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");

/** Light or dark as it was chosen last, else as the system has it. */
export function applyTheme() {
  const chosen = remembered("localStorage", "nextn-theme", null);
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
}

/** The other one. */
export function switchTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  remember("localStorage", "nextn-theme", next);
  applyTheme();
  return next;
}

dark.addEventListener("change", applyTheme);
applyTheme();

/** The key that the user typed, for as long as the tab is open. */
export const key = {
  get: () => remembered("sessionStorage", "nextn-key", ""),
  set: (value) => remember("sessionStorage", "nextn-key", value),
};

/** An answer of the server that is an error. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The server cannot be reached, or an answer of it broke off. */
export class Lost extends Error {
  constructor() {
    super("The connection to nextn-server was lost.");
  }
}

/** A request with the key. Throws `Refused` with the server's own words, and `Lost` where there is no server. */
export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (options.body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Lost();
  }
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // No words of the server's own.
  }
  throw new Refused(response.status, message);
}

/** The data of a stream's events, one after the other, `[DONE]` left out. Throws `Lost` when the stream ends before that. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  const read = () =>
    reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Lost();
    });
  try {
    for (;;) {
      const { value, done } = await read();
      if (done) throw new Lost();
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line === "data: [DONE]") return;
        if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A number for people: few digits, no more than it is worth. */
export function figure(value, digits = 3) {
  if (!Number.isFinite(value)) return "-";
  if (value !== 0 && Math.abs(value) < 1) return value.toPrecision(Math.min(digits, 2));
  return value >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}
