// Whether nextn-server can be reached: says so when it cannot, asks again by itself, and tells when it is back.

import { $, Lost } from "./common.js";

const FIRST_MS = 1000;
const LONGEST_MS = 15000;

let wait = FIRST_MS;
let timer = null;
let back = () => {};
let retries = null;

/** What is done when the server is there again. */
export const whenBack = (then) => (back = then);

/** Whether the server cannot be reached at the moment. */
export const isLost = () => timer !== null;

/** Takes note of an error; true if the server could not be reached. */
export function note(error) {
  if (!(error instanceof Lost)) return false;
  if (timer === null) {
    wait = FIRST_MS;
    later();
  }
  return true;
}

function later() {
  let left = Math.round(wait / 1000);
  clearInterval(retries);
  const tell = () => ($("lost-when").textContent = left > 0 ? `The page asks again in ${left} s.` : "The page is asking …");
  tell();
  retries = setInterval(() => {
    left -= 1;
    tell();
  }, 1000);
  $("lost").hidden = false;
  clearTimeout(timer);
  timer = setTimeout(retry, wait);
  wait = Math.min(2 * wait, LONGEST_MS);
}

/** Asks whether the server is there. */
export async function retry() {
  clearInterval(retries);
  $("lost-when").textContent = "The page is asking …";
  try {
    // Any answer will do: a server that is still loading says so with 503.
    await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(5000) });
  } catch {
    later();
    return;
  }
  clearTimeout(timer);
  timer = null;
  $("lost").hidden = true;
  back();
}
