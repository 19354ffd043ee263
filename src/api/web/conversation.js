// The conversation and the settings as data: what is kept, what is sent, and what a stream adds to a message.

import { remember, remembered } from "./common.js";

/** Settings that are numbers and go into requests under their own names. */
export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens", "thinking_budget_tokens"];

const DEFAULTS = { system: "", thinking: "", n_max: "", tint: true };

/** What the user set. */
export const settings = { ...DEFAULTS, ...remembered(localStorage, "nextn-settings", {}) };

/** Keeps the settings. */
export const keepSettings = () => remember(localStorage, "nextn-settings", settings);

/** Messages: `role`, `content`, for the user's `images` (`name`, and `data` as a data URI), and for the model's `reasoning`, `depths`, `reasoningDepths`, `figures`, `calls`. */
export const messages = remembered(sessionStorage, "nextn-messages", []);

/** Keeps the conversation for as long as the tab is open; without its images where there is no room for them. */
export function keepMessages() {
  const bare = () => messages.map(({ images, ...message }) => (images ? { ...message, lost: images.length } : message));
  return remember(sessionStorage, "nextn-messages", messages) || remember(sessionStorage, "nextn-messages", bare());
}

/** An answer before its first word. */
export const emptyAnswer = () => ({
  role: "assistant", content: "", reasoning: "", depths: [], reasoningDepths: [], figures: "", error: "",
});

const part = ({ data }) => ({ type: "image_url", image_url: { url: data } });

/** The request for the next answer. */
export function request() {
  const sent = messages
    .filter((message) => message.role === "user" || message.content || message.reasoning)
    .map(({ role, content, reasoning, images }) => ({
      role,
      content: images?.length ? [...images.map(part), { type: "text", text: content }] : content,
      ...(reasoning && { reasoning_content: reasoning }),
    }));
  if (settings.system.trim()) sent.unshift({ role: "system", content: settings.system });
  const body = {
    messages: sent,
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    return_drafts: true,
    return_progress: true,
  };
  for (const name of NUMBERS) {
    if (settings[name] !== undefined && settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.n_max !== "") body["speculative.n_max"] = Number(settings.n_max);
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}

/** Adds a chunk of the stream to an answer. */
export function extend(answer, chunk) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  const add = (text, depths) => {
    const parts = chunk.drafts?.parts?.length ? chunk.drafts.parts : [{ text, depth: 0 }];
    for (const part of parts) for (let i = 0; i < part.text.length; i += 1) depths.push(part.depth);
  };
  if (delta.reasoning_content) {
    answer.reasoning += delta.reasoning_content;
    add(delta.reasoning_content, answer.reasoningDepths);
  }
  if (delta.content) {
    answer.content += delta.content;
    add(delta.content, answer.depths);
  }
  const reason = chunk.choices?.[0]?.finish_reason;
  if (reason) answer.reason = reason;
}
