// Colours for code: comments, strings, numbers and key words, told by each language's signs. Makes elements, changes no character.

import { el } from "./common.js";

const words = (text) => new Set(text.split(" "));
const C_WORDS = "auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern false final float for friend goto if include inline int long namespace new noexcept nullptr operator override private protected public return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while";
const JS_WORDS = "as async await break case catch class const continue debugger default delete do else enum export extends false finally for from function if implements import in instanceof interface let new null of package private protected public readonly return static super switch this throw true try type typeof undefined var void while with yield";

/** Of each language: what opens a comment to the line's end, a comment's two ends, what quotes, and its key words. */
const LANGUAGES = {
  rust: { line: "//", block: ["/*", "*/"], quotes: '"', words: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while Some None Ok Err") },
  python: { line: "#", quotes: "\"'", words: words("and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield") },
  js: { line: "//", block: ["/*", "*/"], quotes: "\"'`", words: words(JS_WORDS) },
  c: { line: "//", block: ["/*", "*/"], quotes: "\"'", words: words(C_WORDS) },
  java: { line: "//", block: ["/*", "*/"], quotes: "\"'", words: words("abstract as boolean break byte case catch char class const continue data default do double else enum extends false final finally float for fun if implements import in instanceof int interface internal is long namespace native new null object open override package private protected public return sealed short static string super switch this throw throws true try using val var virtual void volatile when while") },
  go: { line: "//", block: ["/*", "*/"], quotes: "\"'`", words: words("break case chan const continue default defer else fallthrough false for func go goto if import interface map nil package range return select struct switch true type var string int bool error byte") },
  shell: { line: "#", quotes: "\"'", words: words("case do done echo elif else esac exit export fi for function if in local return set shift then unset until while cd") },
  sql: { line: "--", block: ["/*", "*/"], quotes: "'", fold: true, words: words("add all alter and as asc begin between by case create cross delete desc distinct drop else end exists from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references right select set table then union unique update values view when where with") },
  data: { line: "#", quotes: "\"'", words: words("true false null yes no on off") },
  json: { quotes: '"', words: words("true false null") },
  css: { block: ["/*", "*/"], quotes: "\"'", words: words("import media supports keyframes important") },
  markup: { block: ["<!--", "-->"], quotes: '"', words: words("") },
};

const NAMES = {
  rs: "rust", py: "python", python3: "python", javascript: "js", jsx: "js", mjs: "js", ts: "js", tsx: "js", typescript: "js", h: "c", cc: "c", cpp: "c", "c++": "c", hpp: "c", cuda: "c",
  cs: "java", csharp: "java", kotlin: "java", kt: "java", swift: "java", scala: "java", golang: "go", sh: "shell", bash: "shell", zsh: "shell", console: "shell", dockerfile: "shell",
  toml: "data", yaml: "data", yml: "data", ini: "data", html: "markup", xml: "markup", svg: "markup", jsonc: "js", scss: "css", php: "js", ruby: "python", rb: "python",
};

const WORD = /[A-Za-z_][A-Za-z0-9_]*/y;
const NUMBER = /(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*/y;
/** Longer texts keep one colour: they would hold up the page. */
const MAX_CHARACTERS = 60_000;

/** `text` in the colours of its language, or as it stands where that is not known. */
export function coloured(text, name) {
  const out = document.createDocumentFragment();
  const language = LANGUAGES[NAMES[name.toLowerCase()] ?? name.toLowerCase()];
  if (!language || text.length > MAX_CHARACTERS) {
    out.append(text);
    return out;
  }
  let plain = 0;
  let at = 0;
  const take = (end, kind) => {
    if (plain < at) out.append(text.slice(plain, at));
    out.append(el("span", { class: `code-${kind}` }, text.slice(at, end)));
    at = plain = end;
  };
  const to = (sign, from) => {
    const found = text.indexOf(sign, from);
    return found < 0 ? text.length : found;
  };
  while (at < text.length) {
    const sign = text[at];
    const ofSign = (pattern) => {
      pattern.lastIndex = at;
      return pattern.exec(text)?.[0];
    };
    let found;
    if (language.line && text.startsWith(language.line, at)) take(to("\n", at), "comment");
    else if (language.block && text.startsWith(language.block[0], at)) {
      take(Math.min(text.length, to(language.block[1], at + language.block[0].length) + language.block[1].length), "comment");
    } else if (language.quotes.includes(sign)) take(endOfString(text, at, sign), "string");
    else if ((found = ofSign(WORD))) {
      if (language.words.has(language.fold ? found.toLowerCase() : found)) take(at + found.length, "word");
      else at += found.length;
    } else if ((found = ofSign(NUMBER))) take(at + found.length, "number");
    else at += 1;
  }
  if (plain < text.length) out.append(text.slice(plain));
  return out;
}

/** Where a string ends that begins at `at`: at its quote, or with the line for those that cannot span lines. */
function endOfString(text, at, quote) {
  const triple = quote.repeat(3);
  if (quote !== "`" && text.startsWith(triple, at)) {
    const end = text.indexOf(triple, at + 3);
    return end < 0 ? text.length : end + 3;
  }
  for (let i = at + 1; i < text.length; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === quote) return i + 1;
    else if (text[i] === "\n" && quote === "'") return i;
  }
  return text.length;
}
