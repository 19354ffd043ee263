// Presets: named groups of settings, chosen, saved and deleted in the settings' dialog.

import { $, el } from "./common.js";
import { OF_PRESETS, keepPresets, presets } from "./conversation.js";

/** Shows the presets, none of them chosen. */
export function show(chosen = "") {
  const names = Object.keys(presets).sort((a, b) => a.localeCompare(b));
  const first = el("option", { value: "" }, names.length ? "Choose …" : "None yet");
  $("preset").replaceChildren(first, ...names.map((name) => el("option", { value: name }, name)));
  $("preset").value = chosen;
  $("preset").disabled = !names.length;
  $("preset-name").value = chosen;
  buttons();
}

/** Buttons are there when they can work. */
function buttons() {
  $("preset-save").hidden = !$("preset-name").value.trim();
  $("preset-delete").hidden = !$("preset").value;
}

/** Makes the presets work. They change what the dialog shows, which counts when it is closed. */
export function listen() {
  $("preset").addEventListener("change", () => {
    const name = $("preset").value;
    if (name) for (const field of OF_PRESETS) $(field).value = presets[name][field] ?? "";
    $("preset-name").value = name;
    buttons();
  });
  $("preset-name").addEventListener("input", buttons);
  $("preset-name").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    save();
  });
  $("preset-save").addEventListener("click", save);
  $("preset-delete").addEventListener("click", () => {
    delete presets[$("preset").value];
    keepPresets();
    show();
  });
}

function save() {
  const name = $("preset-name").value.trim();
  if (!name) return;
  presets[name] = Object.fromEntries(OF_PRESETS.map((field) => [field, $(field).value]).filter(([, value]) => value !== ""));
  keepPresets();
  show(name);
}
