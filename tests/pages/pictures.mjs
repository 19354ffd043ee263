// Writes the pictures of the pages into docs/pictures: chat and dashboard at 1280 and 390 pixels, light and dark. pngquant and
// zopflipng make them small (apt-get install pngquant zopfli).

import { spawnSync } from "node:child_process";
import { mkdirSync, statSync } from "node:fs";
import { browser, server } from "./harness.mjs";
import { shots } from "./shots.mjs";

const TO = "docs/pictures";

mkdirSync(TO, { recursive: true });
const chromium = await browser();
const { url, stop } = await server("--temp", "0");
try {
  for (const name of await shots(chromium, url, TO)) {
    const path = `${TO}/${name}`;
    const smaller = [["pngquant", "--force", "--nofs", "--strip", "--output", path, "112", path], ["zopflipng", "-y", path, path]];
    const missing = smaller.filter(([program, ...options]) => spawnSync(program, options).error).map(([program]) => program);
    console.log(`${path} ${statSync(path).size}${missing.length ? ` (not installed: ${missing.join(", ")})` : ""}`);
  }
} finally {
  await chromium.close();
  await stop();
}
