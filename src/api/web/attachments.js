// Images and texts that go with the next message: by the button, by drop, by paste.

import { $, el } from "./common.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/** Of one image; the server has a limit of its own. */
const MAX_BYTES = 20 * 1024 * 1024;
/** Of one text: more than most contexts hold. */
const MAX_TEXT_BYTES = 2 * 1024 * 1024;

/** A longer text that is pasted becomes a file: the box would be slow with it, and hide the question. */
const MAX_PASTED = 50_000;

/** Images as data URIs (`name`, `data`), and texts (`name`, `text`). */
let items = [];
let changed = () => {};
/** The model reads images. */
let allowed = false;

const tell = (text) => {
  $("attach-note").textContent = text;
  $("attach-note").hidden = !text;
};

/** Says whether the model reads images. Texts it always reads. */
export function allow(on) {
  allowed = on;
  $("attach").title = on ? "Add images or texts (or drop or paste them)" : "Add texts (or drop or paste them)";
  if (on) $("attach-files").removeAttribute("accept");
  else $("attach-files").setAttribute("accept", "text/*,.md,.json,.toml,.yaml,.yml,.csv,.log,.rs,.py,.js,.ts,.c,.h,.cpp,.go,.java,.sh,.sql,.xml,.html,.css");
}

/** Calls `then` whenever something was added or removed. */
export const whenChanged = (then) => (changed = then);

/** What is in the box, as a message has it (`images`, `texts`), which is gone from there then. */
export function taken() {
  const images = items.filter(({ data }) => data);
  const texts = items.filter(({ text }) => text !== undefined);
  put({});
  return { ...(images.length && { images }), ...(texts.length && { texts }) };
}

/** Puts a message's images and texts into the box, in place of those that are there. */
export function put({ images = [], texts = [] }) {
  items = [...images, ...texts];
  tell("");
  draw();
}

/** How many there are. */
export const count = () => items.length;

/** Small pictures of images and names of texts; with `remove`, each has a button that calls it with its number. */
export function thumbnails(list, remove) {
  return list.map(({ name, data, text }, i) => {
    const shown = data ? el("img", { src: data, alt: name, title: name }) : file(name, text);
    const figure = el("figure", { class: data ? "thumb" : "thumb file" }, shown);
    if (remove) {
      figure.append(el("button", { type: "button", class: "quiet", "aria-label": `Remove ${name}`, onclick: () => remove(i) }, "×"));
    }
    return figure;
  });
}

/** A text by its name and length, which opens. */
function file(name, text) {
  const lines = text.split("\n").length;
  const about = el("summary", {}, el("b", {}, name), ` ${lines} ${lines === 1 ? "line" : "lines"}`);
  return el("details", {}, about, el("pre", { tabindex: "0" }, text.length > 20_000 ? `${text.slice(0, 20_000)}\n…` : text));
}

function draw() {
  const remove = (i) => {
    items = items.filter((_, k) => k !== i);
    draw();
    $("ask").focus();
  };
  $("attached").replaceChildren(...thumbnails(items, remove));
  $("attached").hidden = items.length === 0;
  changed();
}

async function add(files) {
  if (!files.length) return;
  const wrong = [];
  for (const one of files) {
    try {
      items.push(await read(one));
    } catch (error) {
      wrong.push(`${one.name}: ${error.message}`);
    }
  }
  draw();
  tell(wrong.join(" "));
  $("ask").focus();
}

/** A file as an image or a text. Throws words for the user. */
async function read(one) {
  if (one.type.startsWith("image/") && one.type !== "image/svg+xml") {
    if (!allowed) throw new Error("the model reads text only: it has no projector for images.");
    if (!TYPES.includes(one.type)) throw new Error("PNG, JPEG, WebP and GIF are read.");
    if (one.size > MAX_BYTES) throw new Error("more than 20 MiB.");
    return { name: one.name || "image", data: await dataUri(one) };
  }
  if (one.size > MAX_TEXT_BYTES) throw new Error("more than 2 MiB.");
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await one.arrayBuffer());
  } catch {
    text = "\0";
  }
  if (text.includes("\0")) throw new Error("neither an image nor a text in UTF-8.");
  return { name: one.name || "text", text: text.replaceAll("\r\n", "\n") };
}

function dataUri(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/** Listens for files. */
export function listen() {
  const input = $("attach-files");
  $("attach").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
  $("ask").addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (!files.length && text.length > MAX_PASTED) files.push(new File([text], "pasted.txt", { type: "text/plain" }));
    if (!files.length) return;
    event.preventDefault();
    add(files);
  });
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
}
