// Which model answers: its name, the choice among several, and how far one is that is being loaded.

import { $, call, el, figure } from "./common.js";
import { keepSettings, settings } from "./conversation.js";

const EVERY_MS = 1000;

let models = [];
let timer = null;
let since = null;
let changed = () => {};

/** What is done when another model is chosen, or the chosen one is ready; told the model's entry. */
export const whenChanged = (then) => (changed = then);

/** The model that answers: the chosen one, or the first. */
export const chosen = () => models.find(({ id }) => id === settings.model) ?? models[0];

/** Whether the chosen model can answer at once. */
export const isReady = () => chosen()?.status === "loaded";

/** Asks the server for its models, and goes on asking while the chosen one is on its way. */
export async function ask() {
  clearTimeout(timer);
  const before = chosen();
  models = (await (await call("/v1/models")).json()).data;
  const now = chosen();
  show();
  if (now?.id !== before?.id || now?.status !== before?.status) changed(now);
  const moves = models.some(({ status }) => ["loading", "downloading", "unloading"].includes(status));
  if (!moves) since = null;
  else timer = setTimeout(() => ask().catch(() => {}), EVERY_MS);
}

function show() {
  const now = chosen();
  const several = models.length > 1;
  $("pick").hidden = !several;
  $("model").hidden = several;
  if (several) {
    const names = models.map(({ id, status }) => el("option", { value: id }, status === "loaded" ? id : `${id} (${WORDS[status] ?? status})`));
    $("pick").replaceChildren(...names);
    $("pick").value = now.id;
  }
  const about = [now?.id, now?.meta?.quantization, now?.meta && (now.meta.nextn ? "NextN layer" : "no NextN layer")];
  $("model").textContent = about.filter(Boolean).join(" · ");
  $("pick").title = $("model").title = $("model").textContent;
  progress(now);
}

const WORDS = { unloaded: "not loaded", loading: "loading", downloading: "downloading", unloading: "unloading", failed: "did not load" };

/** A line on the chosen model where it is not ready, with a bar where its share is known. */
function progress(model) {
  const box = $("loading");
  const busy = model && ["loading", "downloading"].includes(model.status);
  box.hidden = !busy && model?.status !== "failed";
  if (box.hidden) return;
  const words = [];
  const bar = el("progress", { "aria-label": `${model.id}: progress` });
  if (busy) {
    since ??= Date.now();
    words.push(`${model.status === "loading" ? "Loading" : "Downloading"} ${model.id} … ${Math.round((Date.now() - since) / 1000)} s`);
    const files = Object.values(model.progress ?? {}).filter((file) => file?.total > 0);
    if (files.length) {
      const [done, total] = ["done", "total"].map((name) => files.reduce((n, file) => n + file[name], 0));
      bar.max = total;
      bar.value = done;
      words.push(`${Math.floor((100 * done) / total)} %`, `${figure(done / 2 ** 20)} of ${figure(total / 2 ** 20)} MiB`);
    }
    box.replaceChildren(el("span", {}, words.join(" · ")), bar);
  } else {
    const again = el("button", { type: "button", onclick: () => load(model.id) }, "Load again");
    box.replaceChildren(el("span", { class: "wrong" }, `${model.id} did not load: ${model.error ?? "the server's log says why"}`), again);
  }
}

/** Has the server load a model. */
export async function load(id) {
  await call("/models/load", { method: "POST", body: JSON.stringify({ model: id }) });
  since = Date.now();
  await ask();
}

/** Chooses a model, which the server loads if it has to. */
export async function choose(id) {
  settings.model = id;
  keepSettings();
  if (chosen()?.status === "loaded") {
    show();
    changed(chosen());
  } else await load(id);
}
