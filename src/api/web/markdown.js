// Markdown to elements, never to markup: what is not understood stays text. Pictures become links, so that nothing is fetched.
// Each character keeps the depth at which its token was drafted, and texts are tinted by it; code and formulas are not.

import { coloured } from "./code.js";
import { el } from "./common.js";
import { maths } from "./maths.js";

/** Renders `source`; `depths[i]` belongs to its character `i` and may be left out. */
export function render(source, depths = []) {
  const lines = [];
  let at = 0;
  for (const text of source.split("\n")) {
    lines.push({ text, at });
    at += text.length + 1;
  }
  const out = document.createDocumentFragment();
  blocks(lines, out, depths, 0);
  return out;
}

/** `text` as it stands, tinted. */
export function plain(text, depths = []) {
  const out = document.createDocumentFragment();
  emit(out, text, Array.from({ length: text.length }, (_, i) => i), 0, text.length, depths, true);
  return out;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(?=\S)|^(\s*)([-*+]|\d{1,9}[.)])\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
/** A formula in lines of its own; the first alternatives end in the same line. */
const FORMULA = /^ {0,3}(?:\$\$(.+)\$\$|\\\[(.+)\\\]|(\$\$|\\\[)(.*))\s*$/;
const MAX_FORMULA_LINES = 60;
const TASK = /^\[([ xX])\]\s+(?=\S)/;
const MAX_NESTING = 8;
/** What parts the cells of a table: a bar that no backslash stands before. */
const BAR = /(?<!\\)\|/;

function blocks(lines, out, depths, level) {
  let i = 0;
  while (i < lines.length) {
    const { text } = lines[i];
    if (!text.trim()) {
      i += 1;
      continue;
    }
    const fence = text.match(FENCE);
    let found;
    if (fence) {
      i = code(lines, i, fence, out, depths);
    } else if (FORMULA.test(text) && (found = formula(lines, i, out))) {
      i = found;
    } else if (HEADING.test(text)) {
      const [, marks, title] = text.match(HEADING);
      const start = text.indexOf(title, text.indexOf(marks) + marks.length);
      // The page has its own first headings.
      const node = el(`h${Math.min(marks.length + 2, 6)}`);
      inline(node, [{ text: title, at: lines[i].at + start }], depths);
      out.append(node);
      i += 1;
    } else if (RULE.test(text)) {
      out.append(el("hr"));
      i += 1;
    } else if (QUOTE.test(text) && level < MAX_NESTING) {
      const inner = [];
      for (; i < lines.length && QUOTE.test(lines[i].text); i += 1) inner.push(cut(lines[i], lines[i].text.match(QUOTE)[0].length));
      const node = el("blockquote", { dir: "auto" });
      blocks(inner, node, depths, level + 1);
      out.append(node);
    } else if (ITEM.test(text) && level < MAX_NESTING) {
      i = list(lines, i, out, depths, level);
    } else if (isTable(lines, i)) {
      i = table(lines, i, out, depths);
    } else {
      const paragraph = [];
      const goesOn = () => !interrupts(lines[i].text) && !isTable(lines, i) && !beginsFormula(lines, i);
      for (; i < lines.length && lines[i].text.trim() && (paragraph.length === 0 || goesOn()); i += 1) {
        paragraph.push(cut(lines[i], lines[i].text.length - lines[i].text.trimStart().length));
      }
      const node = el("p");
      inline(node, paragraph, depths);
      out.append(node);
    }
  }
}

const interrupts = (text) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((sign) => sign.test(text));

const isTable = (lines, i) => lines[i].text.includes("|") && DIVIDER.test(lines[i + 1]?.text ?? "") && lines[i + 1].text.includes("-");

/** A formula of several lines, or of one that is its own: models put them straight behind a sentence. */
const beginsFormula = (lines, i) => FORMULA.test(lines[i].text) && formula(lines, i, document.createDocumentFragment()) !== undefined;

const cut = (line, n) => ({ text: line.text.slice(n), at: line.at + n });

function code(lines, i, [, marks, info], out, depths) {
  const inner = el("code");
  const closes = (text) => text.trim().startsWith(marks) && text.trim().replaceAll(marks[0], "") === "";
  i += 1;
  const body = [];
  for (; i < lines.length && !closes(lines[i].text); i += 1) body.push(lines[i]);
  const language = info.trim().split(/\s/)[0];
  inner.append(coloured(body.map(({ text }) => text).join("\n"), language));
  const top = el("div", { class: "code-top" }, el("span", {}, language));
  if (canCopy) {
    const copy = el("button", { type: "button", class: "quiet copy", "aria-label": "Copy code" }, "Copy");
    copy.addEventListener("click", () => copied(copy, inner.textContent));
    top.append(copy);
  }
  const label = language ? `Code: ${language}` : "Code";
  out.append(el("div", { class: "code" }, top, el("pre", { dir: "ltr", tabindex: "0", role: "region", "aria-label": label }, inner)));
  return i + 1;
}

/** Whether the page may write to the clipboard: browsers let only pages of https and of this machine. */
export const canCopy = Boolean(navigator.clipboard);

/** A formula in lines of its own; gives where it goes on, or nothing where it does not end. */
function formula(lines, i, out) {
  const [, dollars, brackets, opens, first] = lines[i].text.match(FORMULA);
  let tex = dollars ?? brackets;
  let end = i;
  if (opens) {
    const sign = opens === "$$" ? "$$" : "\\]";
    const parts = [first];
    do {
      end += 1;
      if (end >= lines.length || end - i > MAX_FORMULA_LINES) return undefined;
      parts.push(lines[end].text);
    } while (!lines[end].text.trimEnd().endsWith(sign));
    tex = parts.join("\n").trimEnd().slice(0, -sign.length);
  }
  const made = tex.trim() && maths(tex, true);
  if (!made) return undefined;
  out.append(el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Formula" }, made));
  return end + 1;
}

/** Puts a text on the clipboard, and says so on the button. */
export async function copied(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function list(lines, i, out, depths, level) {
  const [, , mark = lines[i].text.trim()] = lines[i].text.match(ITEM);
  const ordered = /\d/.test(mark);
  const first = lines[i].text.length - lines[i].text.trimStart().length;
  const node = el(ordered ? "ol" : "ul", { dir: "auto", start: ordered && parseInt(mark, 10) !== 1 ? parseInt(mark, 10) : undefined });
  while (i < lines.length) {
    const found = lines[i].text.match(ITEM);
    const indent = lines[i].text.length - lines[i].text.trimStart().length;
    if (!found || indent < first || /\d/.test(found[2] ?? found[5]) !== ordered) break;
    const inner = [cut(lines[i], found[0].length)];
    i += 1;
    for (; i < lines.length; i += 1) {
      const text = lines[i].text;
      const depth = text.length - text.trimStart().length;
      if (!text.trim()) {
        // A blank line belongs to the item if something indented follows.
        const next = lines.slice(i + 1).find((line) => line.text.trim());
        if (!next || next.text.length - next.text.trimStart().length <= first) break;
        inner.push(lines[i]);
      } else if (depth > first) {
        inner.push(cut(lines[i], Math.min(depth, found[0].length)));
      } else if (interrupts(text)) {
        break;
      } else {
        inner.push(lines[i]);
      }
    }
    const item = el("li");
    const task = inner[0].text.match(TASK);
    if (task) {
      inner[0] = cut(inner[0], task[0].length);
      item.className = "task";
    }
    blocks(inner, item, depths, level + 1);
    // A single paragraph needs no space of its own.
    if (item.firstElementChild?.tagName === "P") item.firstElementChild.replaceWith(...item.firstElementChild.childNodes);
    if (task) {
      const done = task[1] !== " ";
      item.prepend(el("input", { type: "checkbox", checked: done, disabled: true, "aria-label": done ? "Done" : "To do" }), " ");
    }
    node.append(item);
    while (i < lines.length && !lines[i].text.trim() && i + 1 < lines.length && ITEM.test(lines[i + 1].text)) i += 1;
  }
  out.append(node);
  return i;
}

function table(lines, i, out, depths) {
  const ends = lines[i + 1].text.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const aligned = ends.map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : undefined));
  const row = (line, name) => {
    const node = el("tr");
    let { text, at } = line;
    const lead = text.length - text.trimStart().length;
    [text, at] = [text.trim(), at + lead];
    if (text.startsWith("|")) [text, at] = [text.slice(1), at + 1];
    if (/(?<!\\)\|$/.test(text)) text = text.slice(0, -1);
    for (const [n, cell] of text.split(BAR).entries()) {
      const space = cell.length - cell.trimStart().length;
      const inner = el(name, { class: aligned[n] });
      inline(inner, [{ text: cell.trim(), at: at + space }], depths);
      for (const code of inner.querySelectorAll("code")) code.textContent = code.textContent.replaceAll("\\|", "|");
      node.append(inner);
      at += cell.length + 1;
    }
    return node;
  };
  const head = el("thead", {}, row(lines[i], "th"));
  const body = el("tbody");
  for (i += 2; i < lines.length && lines[i].text.includes("|"); i += 1) body.append(row(lines[i], "td"));
  out.append(el("div", { class: "wide", dir: "auto", tabindex: "0", role: "region", "aria-label": "Table" }, el("table", {}, head, body)));
  return i;
}

/** Text with emphasis, code and links, from lines of the source. */
function inline(out, lines, depths) {
  let text = "";
  const places = [];
  lines.forEach((line, k) => {
    const part = k + 1 < lines.length ? `${line.text}\n` : line.text;
    for (let j = 0; j < part.length; j += 1) places.push(line.at + j);
    text += part;
  });
  spans(out, text, places, 0, text.length, depths, 0);
}

// Lengths are bounded: signs that nobody closes must not cost more than their number.
const SPAN = new RegExp(
  [
    /\\\((?<round>[^\n]{1,999}?)\\\)/,
    /\\\[(?<square>[^\n]{1,999}?)\\\]/,
    /(?<ticks>`+)(?!`)(?<code>[\s\S]{0,999}?[^`])\k<ticks>(?!`)/,
    /(?<two>\*\*|__)(?=\S)(?<strong>[\s\S]{0,999}?\S)\k<two>/,
    /(?<one>\*|_)(?=\S)(?<em>[\s\S]{0,999}?\S)\k<one>/,
    /~~(?=\S)(?<del>[\s\S]{0,999}?\S)~~/,
    /!?\[(?<words>[^\]\n]{0,999})\]\((?<target>[^()\s]{0,999})(?:\s+"[^"]{0,200}")?\)/,
    /\\(?<escaped>[!-/:-@[-`{-~])/,
    /(?<line><[bB][rR] ?\/?>)/,
    /(?<address>https?:\/\/[^\s<>()"']+[^\s<>()"'.,;:!?])/,
    /\$\$(?<dollars>[^$\n]{1,999})\$\$/,
    // Sums of money are no formulas: nothing stands between a formula and its signs.
    /(?<![\w$])\$(?=\S)(?<dollar>[^$\n]{0,999}?[^\s$\\])\$(?![\w$])/,
  ]
    .map(({ source }) => source)
    .join("|"),
  "g",
);

function spans(out, text, places, from, to, depths, level) {
  const piece = text.slice(from, to);
  SPAN.lastIndex = 0;
  let done = 0;
  const found = level < MAX_NESTING ? [...piece.matchAll(SPAN)] : [];
  for (const match of found) {
    const start = match.index;
    const is = match.groups;
    const underscore = (is.two ?? is.one ?? "").startsWith("_");
    const inWord = /\w/.test(piece[start - 1] ?? "") || /\w/.test(piece[start + match[0].length] ?? "");
    if (underscore && inWord) continue;
    emit(out, text, places, from + done, from + start, depths);
    done = start + match[0].length;
    const within = (node, inner, offset) => {
      spans(node, text, places, from + start + offset, from + start + offset + inner.length, depths, level + 1);
      out.append(node);
    };
    const tex = is.round ?? is.square ?? is.dollars ?? is.dollar;
    if (tex !== undefined) {
      const made = maths(tex, is.square !== undefined || is.dollars !== undefined);
      if (made) out.append(made);
      else emit(out, text, places, from + start, from + done, depths);
    } else if (is.ticks) out.append(el("code", {}, is.code));
    else if (is.two) within(el("strong"), is.strong, 2);
    else if (is.one) within(el("em"), is.em, 1);
    else if (is.del !== undefined) within(el("del"), is.del, 2);
    else if (is.words !== undefined) {
      within(link(is.target) ?? el("span"), is.words, match[0].indexOf("[") + 1);
    } else if (is.line) out.append(el("br"));
    else if (is.escaped) emit(out, text, places, from + start + 1, from + done, depths);
    else {
      const node = link(is.address) ?? el("span");
      emit(node, text, places, from + start, from + done, depths);
      out.append(node);
    }
  }
  emit(out, text, places, from + done, to, depths);
}

/** A link to the web or to mail; nothing else is one. */
function link(target) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return null;
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" });
}

/** Text in runs of one depth. */
function emit(out, text, places, from, to, depths, keepsBreaks = false) {
  let start = from;
  for (let i = from; i <= to; i += 1) {
    const same = i < to && (depths[places[i]] ?? 0) === (depths[places[start]] ?? 0);
    if (same || start === to) continue;
    const depth = depths[places[start]] ?? 0;
    const run = text.slice(start, i);
    const run_ = keepsBreaks ? run : run.replaceAll("\n", " ");
    if (depth > 0) out.append(el("span", { class: `drafted d${Math.min(depth, 8)}` }, run_));
    else out.append(run_);
    start = i;
  }
}
