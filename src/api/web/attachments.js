// Images that go with the next message: by the button, by drop, by paste.

import { $, el } from "./common.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/** Of one image; the server has a limit of its own. */
const MAX_BYTES = 20 * 1024 * 1024;

/** Images as data URIs, with their names. */
let images = [];
/** The model reads images. */
let allowed = false;

const tell = (text) => {
  $("attach-note").textContent = text;
  $("attach-note").hidden = !text;
};

/** Says whether the model reads images. */
export function allow(on) {
  allowed = on;
  $("attach").hidden = !on;
}

/** The images, which are gone from the box then. */
export function taken() {
  const list = images;
  put([]);
  return list;
}

/** Puts these images into the box, in place of those that are there. */
export function put(list) {
  images = list;
  tell("");
  draw();
}

/** How many there are. */
export const count = () => images.length;

/** Small pictures of images; with `remove`, each has a button that calls it with its number. */
export function thumbnails(list, remove) {
  return list.map(({ name, data }, i) => {
    const figure = el("figure", { class: "thumb" }, el("img", { src: data, alt: name, title: name }));
    if (remove) {
      figure.append(el("button", { type: "button", class: "quiet", "aria-label": `Remove ${name}`, onclick: () => remove(i) }, "×"));
    }
    return figure;
  });
}

function draw() {
  const remove = (i) => {
    put(images.filter((_, k) => k !== i));
    $("ask").focus();
  };
  $("attached").replaceChildren(...thumbnails(images, remove));
  $("attached").hidden = images.length === 0;
}

async function add(files) {
  if (!files.length) return;
  if (!allowed) {
    tell("The model reads text only: it has no projector for images.");
    return;
  }
  tell("");
  for (const file of files) {
    if (!TYPES.includes(file.type)) tell(`${file.name}: PNG, JPEG, WebP and GIF are read.`);
    else if (file.size > MAX_BYTES) tell(`${file.name}: more than 20 MiB.`);
    else images.push({ name: file.name || "image", data: await dataUri(file) });
  }
  draw();
  $("ask").focus();
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

/** Listens for images. */
export function listen() {
  const input = $("attach-files");
  $("attach").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
  $("ask").addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
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
