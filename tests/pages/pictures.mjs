// Writes the pictures of the pages: the chat with tinted drafts at three looks, and the dashboard.

import { mkdirSync } from "node:fs";
import { browser, page, say, server } from "./harness.mjs";

const TO = "docs/pictures";
const QUESTIONS = ["Hello! Who are you?", "What is 20 + 15?", "Count from 1 to 20."];
const LOOKS = [
  { name: "chat-light", width: 1280, theme: "light" },
  { name: "chat-dark", width: 1280, theme: "dark" },
  { name: "chat-phone", width: 390, theme: "light" },
];

mkdirSync(TO, { recursive: true });
const chromium = await browser();
const { url, stop } = await server("--temp", "0");
try {
  for (const { name, ...look } of LOOKS) {
    const { page: made, close } = await page(chromium, url, look);
    await made.goto("/");
    await made.waitForFunction(() => document.querySelector("#model").textContent);
    for (const question of QUESTIONS) await say(made, question);
    await made.evaluate(() => document.activeElement?.blur());
    await made.screenshot({ path: `${TO}/${name}.png` });
    console.log(`${TO}/${name}.png`);
    await close();
  }
  const { page: made, close } = await page(chromium, url, { width: 1280, theme: "light" });
  await made.goto("/dashboard");
  // Lines need readings, and something that happens between them.
  for (let i = 0; i < 6; i += 1) {
    await made.request.post("/completion", { data: { prompt: `1, 2, 3, 4, ${i},`, n_predict: 64 } });
    await made.waitForTimeout(2000);
  }
  await made.screenshot({ path: `${TO}/dashboard.png`, fullPage: true });
  console.log(`${TO}/dashboard.png`);
  await close();
} finally {
  await chromium.close();
  await stop();
}
