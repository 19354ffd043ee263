// A server and a browser for the time of a script: nextn-server with the model inside it, and Chromium without a window.
// NEXTN_SERVER names another server than target/debug/nextn-server, CHROMIUM another browser than the one in PATH. With
// NEXTN_PAGES=src/api/web the pages come from that folder instead of the server's own: for work on them without a build.

import { spawn } from "node:child_process";
import { accessSync, mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const PROGRAM = process.env.NEXTN_SERVER ?? "target/debug/nextn-server";
const OPTIONS = ["-t", "2", "-c", "2048", "-np", "1", "--spec", "nextn", "--draft-max", "3"];

/** Starts the server; gives its address, and `stop`. */
export async function server(...more) {
  const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("NEXTN_")));
  const port = more.includes("--port") ? [] : ["--port", "0"];
  const child = spawn(PROGRAM, [...port, ...OPTIONS, ...more], { stdio: ["ignore", "ignore", "pipe"], env: environment });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const lines = createInterface({ input: child.stderr });
  const said = [];
  const address = new Promise((resolve, reject) => {
    lines.on("line", (line) => {
      said.push(line);
      const found = line.match(/listening on (https?:\/\/\S+)/);
      if (found) resolve(found[1]);
    });
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`${PROGRAM} ended with ${code}:\n${said.join("\n")}`)));
  });
  const stop = async () => {
    child.kill("SIGTERM");
    await ended;
  };
  return { url: await address, stop };
}

/** Where the browser is. */
function browserPath() {
  const names = ["chromium", "chromium-browser", "google-chrome"];
  const places = (process.env.PATH ?? "").split(":").flatMap((folder) => names.map((name) => join(folder, name)));
  const found = [process.env.CHROMIUM, ...places].find((path) => {
    try {
      accessSync(path);
      return true;
    } catch {
      return false;
    }
  });
  if (!found) throw new Error("no Chromium is in PATH: apt-get install chromium, or name one in CHROMIUM");
  return found;
}

/** Starts the browser. */
export const browser = () => chromium.launch({ executablePath: browserPath(), args: ["--no-sandbox"] });

/** Sizes and themes at which pages are looked at. */
export const LOOKS = [1280, 390].flatMap((width) => ["light", "dark"].map((theme) => ({ width, theme })));

/** A page of a browser's own, with nothing kept; `before` runs in it first. What goes wrong in it is put into `errors`. */
export async function page(of, url, { width = 1280, theme = "light", before } = {}) {
  const phone = width < 600;
  const context = await of.newContext({
    viewport: { width, height: phone ? 844 : 800 }, colorScheme: theme, hasTouch: phone, isMobile: phone, acceptDownloads: true, baseURL: url,
  });
  const made = await context.newPage();
  made.setDefaultTimeout(60_000);
  if (before) await made.addInitScript(before);
  const errors = [];
  made.on("pageerror", (error) => errors.push(error.stack ?? String(error)));
  // A refused request is told in the console too: those are the page's own business.
  made.on("console", (message) => message.type() === "error" && !/Failed to load resource|by CORS policy/.test(message.text()) && errors.push(message.text()));
  if (process.env.NEXTN_PAGES) {
    await fromFolder(context, process.env.NEXTN_PAGES);
    // Chromium does not see that such pages are this machine's own, which may call it without being asked.
    await context.grantPermissions(["local-network-access"]);
  }
  return { page: made, errors, close: () => context.close() };
}

async function fromFolder(context, folder) {
  const types = { js: "text/javascript", css: "text/css", svg: "image/svg+xml", html: "text/html; charset=utf-8" };
  const files = (url) => ({ "/": "chat.html", "/dashboard": "dashboard.html" })[url.pathname] ?? url.pathname.match(/^\/assets\/(.+)$/)?.[1];
  await context.route((url) => files(url) !== undefined, async (route) => {
    const name = files(new URL(route.request().url()));
    const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' http: https:; img-src 'self' data:; base-uri 'none'";
    const headers = { "content-security-policy": policy };
    await route.fulfill({ body: readFileSync(join(folder, name)), contentType: types[name.split(".").pop()], headers });
  });
}

/** Writes a message and sends it; on a phone Enter is a new line. */
export async function send(made, text) {
  await made.fill("#ask", text);
  if (made.viewportSize().width < 600) await made.tap("#send");
  else await made.press("#ask", "Enter");
}

/** Writes a message, sends it, and waits for the answer's end. */
export async function say(made, text) {
  const before = await made.locator("article.assistant").count();
  await send(made, text);
  await answered(made, before + 1);
}

/** Waits until no answer is coming and there are `n` of them. */
export async function answered(made, n) {
  await made.waitForFunction(
    (wanted) => document.querySelectorAll("article.assistant").length >= wanted && document.querySelector("#stop").hidden && document.querySelector("article:last-child .acts button"),
    n, { timeout: 240_000 },
  );
}

/** A folder for files of one run. */
export const folder = () => mkdtempSync(join(tmpdir(), "nextn-pages-"));
