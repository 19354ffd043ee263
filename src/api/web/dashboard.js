// The dashboard: asks for the figures, keeps those of the last minutes, and draws them.

import { $, call, el, figure, key, svg, switchTheme } from "./common.js";
import { byLabel, grown, parse, quantile } from "./metrics.js";

const EVERY_MS = 2000;
const KEPT_MS = 10 * 60 * 1000;
/** Readings that a rate looks back: figures that come in bursts are evened out. */
const BACK = 5;

const readings = [];

/** What is plotted: each series gives a value of two readings that lie `seconds` apart. */
const CHARTS = [
  {
    title: "Tokens a second",
    series: [
      { name: "generated", of: (a, b, s) => grown(a, b, "llamacpp:tokens_predicted_total") / s },
      { name: "prompts", of: (a, b, s) => grown(a, b, "llamacpp:prompt_tokens_total") / s },
      { name: "from cache", of: (a, b, s) => grown(a, b, "nextn:prompt_tokens_cached_total") / s },
    ],
  },
  {
    title: "Requests",
    series: [
      { name: "running", of: (_, b) => b.get("llamacpp:requests_processing") },
      { name: "waiting", of: (_, b) => b.get("llamacpp:requests_deferred") },
    ],
  },
  { title: "Acceptance by position in the draft", unit: "%", top: 100, series: [], depths: true },
  {
    title: "Time to first token",
    unit: "ms",
    series: [0.5, 0.95].map((q) => ({
      name: `p${100 * q}`,
      of: (a, b) => 1000 * quantile(a, b, "nextn:time_to_first_token_seconds", q),
    })),
  },
  {
    title: "Between two tokens",
    unit: "ms",
    series: [0.5, 0.95].map((q) => ({
      name: `p${100 * q}`,
      of: (a, b) => 1000 * quantile(a, b, "nextn:inter_token_seconds", q),
    })),
  },
  {
    title: "Forward passes a second",
    series: [
      { name: "passes", of: (a, b, s) => grown(a, b, "llamacpp:n_decode_total") / s },
      { name: "their tokens", of: (a, b, s) => grown(a, b, "nextn:rows_total") / s },
    ],
  },
];

const TILES = [
  ["tokens/s, last answer", (v) => figure(v.get("nextn:predicted_tokens_seconds"))],
  ["running", (v) => figure(v.get("llamacpp:requests_processing"))],
  ["waiting", (v) => figure(v.get("llamacpp:requests_deferred"))],
  ["tokens generated", (v) => figure(v.get("llamacpp:tokens_predicted_total"))],
  ["draft tokens accepted", (v) => percent(v.get("llamacpp:spec_decode_num_accepted_tokens_total"), v.get("llamacpp:spec_decode_num_draft_tokens_total"))],
  ["first token, p50\u00a0·\u00a0p95", (v) => pair(v, "nextn:time_to_first_token_seconds")],
  ["between tokens, p50\u00a0·\u00a0p95", (v) => pair(v, "nextn:inter_token_seconds")],
  ["prompt cache hits", (v) => `${figure(v.get("nextn:prompt_cache_hits_total"))} of ${figure(sum(v, "nextn:requests_total"))}`],
  ["prompt tokens from cache", (v) => percent(v.get("nextn:prompt_tokens_cached_total"), v.get("nextn:prompt_tokens_cached_total") + v.get("llamacpp:prompt_tokens_total"))],
  ["KV and state", (v) => bytes(v.get("nextn:state_bytes"))],
  ["kept conversations", (v) => bytes(v.get("nextn:stored_bytes"))],
];

const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "-");
const bytes = (n) => (n === undefined ? "-" : `${figure(n / 2 ** 20)} MiB`);

/** Two quantiles of all that a histogram took in since the server started. */
const pair = (v, family, label = "") => {
  const [half, most] = [0.5, 0.95].map((q) => 1000 * quantile(NONE, v, family, q, label));
  if (!Number.isFinite(half)) return "-";
  if (half >= 1000) return `${figure(half / 1000)} · ${figure(most / 1000)} s`;
  // One unit and few digits: a tile is narrow.
  if (most >= 10_000) return `${(half / 1000).toFixed(2)} · ${figure(most / 1000)} s`;
  return most < 1000 ? `${figure(half)} · ${figure(most)} ms` : `${Math.round(half)} · ${Math.round(most)} ms`;
};
const NONE = new Map();
const sum = (v, family) => [...v].reduce((n, [name, value]) => (name.startsWith(`${family}{`) ? n + value : n), 0);

/** What the table of models tells of each: a heading, and a value of a reading and the model's label. */
const MODELS = [
  ["requests", (v, m) => figure(v.get(`nextn:model_requests_total${m}`))],
  ["tokens generated", (v, m) => figure(v.get(`nextn:model_tokens_predicted_total${m}`))],
  ["draft tokens accepted", (v, m) => percent(v.get(`nextn:model_accepted_tokens_total${m}`), v.get(`nextn:model_draft_tokens_total${m}`))],
  ["prompt cache hits", (v, m) => figure(v.get(`nextn:model_prompt_cache_hits_total${m}`))],
  ["prompt tokens from cache", (v, m) => share(v, `nextn:model_prompt_tokens_cached_total${m}`, `nextn:model_prompt_tokens_total${m}`)],
  ["first token, p50\u00a0·\u00a0p95", (v, m) => pair(v, "nextn:model_time_to_first_token_seconds", m)],
  ["between tokens, p50\u00a0·\u00a0p95", (v, m) => pair(v, "nextn:model_inter_token_seconds", m)],
  ["KV and state", (v, m) => bytes(v.get(`nextn:model_state_bytes${m}`))],
  ["checkpoints", (v, m) => bytes(v.get(`nextn:model_checkpoint_bytes${m}`))],
  ["kept conversations", (v, m) => bytes(v.get(`nextn:model_stored_bytes${m}`))],
  ["compute buffers", (v, m) => bytes(v.get(`nextn:model_compute_bytes${m}`))],
];

/** Of both counters' sum the share of the first. */
const share = (v, part, rest) => percent(v.get(part), v.get(part) + v.get(rest));

/** A column for each model that was asked or is loaded. */
function models(values) {
  const names = new Set([
    ...byLabel(values, "nextn:model_requests_total", "model").keys(),
    ...byLabel(values, "nextn:model_state_bytes", "model").keys(),
  ]);
  const sorted = [...names].sort();
  const rows = MODELS.map(([title, of]) => {
    const cells = sorted.map((name) => el("td", {}, of(values, `{model="${name}"}`)));
    return el("tr", {}, el("th", { scope: "row" }, title), ...cells);
  });
  const head = el("tr", {}, el("th", { scope: "col" }, "Model"), ...sorted.map((name) => el("th", { scope: "col" }, name)));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
}

async function ask() {
  try {
    const text = await (await call("/metrics")).text();
    readings.push({ at: Date.now(), values: parse(text) });
    while (readings[0].at < Date.now() - KEPT_MS) readings.shift();
    $("state").textContent = "";
    $("key-form").hidden = true;
    show();
  } catch (error) {
    $("state").textContent = error.message;
    $("key-form").hidden = error.status !== 401;
  }
  setTimeout(ask, EVERY_MS);
}

function show() {
  const values = readings.at(-1).values;
  $("tiles").replaceChildren(...TILES.map(([name, of]) => el("div", {}, el("dt", {}, name), el("dd", {}, of(values)))));
  // The scroll of a wide table stays where it is while nothing changes.
  const table = models(values);
  if (table.textContent !== $("models").textContent) $("models").replaceChildren(table);
  const depths = [...byLabel(values, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "position").keys()];
  depths.sort((a, b) => a - b);
  const charts = CHARTS.map((chart) => (chart.depths ? { ...chart, series: depths.slice(0, 8).map(ofDepth) } : chart));
  $("charts").replaceChildren(...charts.map(draw));
}

/** Of the draft tokens at this position the share that was accepted. */
const ofDepth = (position) => ({
  name: `${Number(position) + 1}`,
  of: (a, b) => {
    const accepted = grown(a, b, `llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="${position}"}`);
    return (100 * accepted) / grown(a, b, `nextn:spec_decode_num_draft_tokens_per_pos_total{position="${position}"}`);
  },
});

/** What the time axis may show. */
const SPANS = [1, 2, 5].map((minutes) => minutes * 60000);
const WIDE = 480;
const HIGH = 150;
const LEFT = 44;
const LOW = 18;

function draw({ title, unit = "", top, series }) {
  const now = readings.at(-1).at;
  // A page that was just opened has a minute to fill, not ten.
  const span = SPANS.find((ms) => now - readings[0].at <= ms) ?? KEPT_MS;
  const lines = series.map(({ name, of }) => ({
    name,
    points: readings.slice(1).map(({ at, values }, i) => {
      const from = readings[Math.max(0, i + 1 - BACK)];
      return { x: LEFT + (WIDE - LEFT) * (1 - (now - at) / span), y: of(from.values, values, (at - from.at) / 1000) };
    }),
  }));
  const all = lines.flatMap(({ points }) => points.map(({ y }) => y)).filter(Number.isFinite);
  const highest = top ?? nice(Math.max(1, ...all));
  const y = (value) => HIGH - LOW - ((HIGH - LOW - 8) * value) / highest;
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img" });
  for (const share of [0, 0.5, 1]) {
    picture.append(
      svg("line", { x1: LEFT, x2: WIDE, y1: y(share * highest), y2: y(share * highest), class: "grid-line" }),
      svg("text", { x: LEFT - 6, y: y(share * highest) + 4, "text-anchor": "end" }, all.length || top ? figure(share * highest, 2) : ""),
    );
  }
  for (const [share, anchor] of [[1, "start"], [0.5, "middle"], [0, "end"]]) {
    const x = LEFT + (WIDE - LEFT) * (1 - share);
    picture.append(svg("text", { x, y: HIGH - 3, "text-anchor": anchor }, share ? `-${ago(share * span)}` : "now"));
  }
  lines.forEach(({ points }, i) => {
    let path = "";
    let pen = "M";
    for (const { x, y: value } of points) {
      if (Number.isFinite(value)) path += `${pen}${x.toFixed(1)} ${y(Math.min(value, highest)).toFixed(1)}`;
      pen = Number.isFinite(value) ? "L" : "M";
    }
    if (path) picture.append(svg("path", { d: path, class: `c${i + 1}` }));
  });
  const last = ({ name, points }) => `${name} ${figure(points.findLast(({ y: value }) => Number.isFinite(value))?.y)}${unit ? ` ${unit}` : ""}`;
  picture.setAttribute("aria-label", `${title}: ${lines.map(last).join(", ") || "nothing yet"}`);
  const legend = el("span", { class: "legend" }, ...lines.map((line, i) => el("span", { class: `c${i + 1}` }, last(line))));
  return el("figure", { class: "chart" }, el("figcaption", {}, title, legend), picture);
}

const ago = (ms) => (ms < 60000 ? `${ms / 1000} s` : `${figure(ms / 60000)} min`);

/** The next round number. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((n) => n * power >= value) * power;
}

$("theme").addEventListener("click", switchTheme);
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set($("key").value.trim());
  $("key").value = "";
});
ask();
