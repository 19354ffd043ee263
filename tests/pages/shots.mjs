// Pictures of the pages at every look, and whether two pictures show the same.
//
// Pixels are not compared one by one: fonts and their smoothing differ between machines and versions of Chromium, and figures of
// speed in the pictures differ in every run. Both pictures are shrunk to cells of some 16 pixels, and few cells may differ in colour:
// a missing panel, a wrong theme, a broken column or an overflow changes many.

import { readFileSync } from "node:fs";
import { LOOKS, page, say } from "./harness.mjs";

const QUESTIONS = ["Hello! Who are you?", "What is 20 + 15?", "Count from 1 to 20."];
const nameOf = (what, { width, theme }) => [what, width < 600 && "phone", theme].filter(Boolean).join("-");

/** Makes all pictures into `folder`; gives their file names. */
export async function shots(chromium, url, folder) {
  const names = [];
  const shot = async (made, name) => {
    names.push(`${name}.png`);
    await made.screenshot({ path: `${folder}/${name}.png` });
  };
  for (const look of LOOKS) {
    const { page: made, close } = await page(chromium, url, look);
    await made.goto("/");
    await made.waitForFunction(() => document.querySelector("#model").textContent);
    for (const question of QUESTIONS) await say(made, question);
    await made.evaluate(() => document.activeElement?.blur());
    await shot(made, nameOf("chat", look));
    await close();
  }
  const open = await Promise.all(LOOKS.map((look) => page(chromium, url, look)));
  await Promise.all(open.map(({ page: made }) => made.goto("/dashboard")));
  // Lines need readings, and something that happens between them.
  for (let i = 0; i < 6; i += 1) {
    await open[0].page.request.post("/completion", { data: { prompt: `1, 2, 3, 4, ${i},`, n_predict: 64 } });
    await open[0].page.waitForTimeout(2000);
  }
  for (const [i, { page: made, close }] of open.entries()) {
    await made.bringToFront();
    await shot(made, nameOf("dashboard", LOOKS[i]));
    await close();
  }
  return names;
}

/** Of the cells of two pictures (paths) the share that differs in colour; 1 where they differ in size. `made` is any page. */
export function difference(made, one, other) {
  const [a, b] = [one, other].map((path) => `data:image/png;base64,${readFileSync(path).toString("base64")}`);
  return made.evaluate(
    async ([first, second]) => {
      const load = async (source) => {
        const image = new Image();
        image.src = source;
        await image.decode();
        return image;
      };
      const [x, y] = [await load(first), await load(second)];
      if (x.width !== y.width || x.height !== y.height) return 1;
      const [columns, rows] = [Math.round(x.width / 16), Math.round(x.height / 16)];
      const cells = (image) => {
        const canvas = new OffscreenCanvas(columns, rows).getContext("2d");
        canvas.imageSmoothingQuality = "high";
        canvas.drawImage(image, 0, 0, columns * 16, rows * 16, 0, 0, columns, rows);
        return canvas.getImageData(0, 0, columns, rows).data;
      };
      const [p, q] = [cells(x), cells(y)];
      let n = 0;
      for (let i = 0; i < p.length; i += 4) if (Math.max(...[0, 1, 2].map((k) => Math.abs(p[i + k] - q[i + k]))) > 32) n += 1;
      return n / (columns * rows);
    },
    [a, b],
  );
}
