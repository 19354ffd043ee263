// What speculation does while an answer comes: its figures, acceptance by depth, and a strip of the last engine steps.

import { $, el, figure, svg } from "./common.js";

const STEPS = 60;
/** Milliseconds of answer that the live figures look back. */
const WINDOW = 1500;

/** Figures of one answer. */
export class Speculation {
  constructor() {
    this.reached = [];
    this.kept = [];
    this.steps = [];
    this.marks = [];
    this.last = -1;
    this.timings = null;
    this.ended = false;
  }

  /** Takes a chunk's `drafts` and `timings`. */
  take(drafts, timings) {
    if (timings) {
      this.timings = timings;
      this.marks.push({ ms: timings.predicted_ms, tokens: timings.predicted_n, cycles: timings.cycles });
      while (this.marks.length > 2 && this.marks.at(-1).ms - this.marks[0].ms > WINDOW) this.marks.shift();
    }
    if (!drafts || drafts.cycle === this.last) return;
    this.last = drafts.cycle;
    // The prompt's last step judges nothing.
    if (drafts.cycle === 0) return;
    for (let d = 0; d < drafts.n_drafted; d += 1) {
      this.reached[d] = (this.reached[d] ?? 0) + 1;
      this.kept[d] = (this.kept[d] ?? 0) + (d < drafts.n_accepted ? 1 : 0);
    }
    this.steps.push({ drafted: drafts.n_drafted, accepted: drafts.n_accepted });
    if (this.steps.length > STEPS) this.steps.shift();
  }

  /** The figures at the end, as the engine counts them; from now on the panel shows those of the whole answer too. */
  end() {
    this.ended = true;
    const t = this.timings;
    if (!t || t.predicted_n < 2) return "";
    const parts = [`${t.predicted_n} tokens`, `${figure(t.predicted_per_second)}/s`];
    if (t.draft_n > 0) {
      parts.push(`${Math.round((100 * t.draft_n_accepted) / t.draft_n)} % of ${t.draft_n} drafted tokens accepted`);
      parts.push(`${figure(t.predicted_ms / Math.max(t.cycles, 1))}\u00a0ms/step`);
    }
    if (t.cache_n > 0) parts.push(`${t.cache_n} of ${t.cache_n + t.prompt_n} prompt tokens cached`);
    return parts.join(" · ");
  }

  /** Shows it all in the panel. */
  show() {
    const t = this.timings;
    if (!t) return;
    $("panel").hidden = false;
    // The first token of an answer is the prompt's.
    const [first, last] = [this.ended ? { ms: 0, tokens: 1, cycles: 0 } : this.marks[0], this.marks.at(-1)];
    const ms = last.ms - first.ms;
    const steps = last.cycles - first.cycles;
    $("rate").textContent = figure(ms > 0 ? ((last.tokens - Math.max(first.tokens, 1)) * 1000) / ms : t.predicted_per_second);
    $("step-ms").textContent = figure(steps > 0 ? ms / steps : NaN);
    $("per-step").textContent = figure(t.cycles > 0 ? (t.predicted_n - 1) / t.cycles : NaN);
    $("accepted").textContent = t.draft_n > 0 ? `${Math.round((100 * t.draft_n_accepted) / t.draft_n)} %` : "no drafts";
    this.showDepths();
    this.showStrip();
  }

  showDepths() {
    const bars = this.reached.map((n, d) => {
      const share = this.kept[d] / n;
      const bar = el("span", { class: `bar d${Math.min(d + 1, 8)}` });
      bar.style.setProperty("--share", share.toFixed(3));
      return el("div", { class: "depth" }, bar, el("span", { class: "depth-label" }, `${d + 1}: ${Math.round(100 * share)} %`));
    });
    $("depths").replaceChildren(...bars);
    const words = this.reached.map((n, d) => `depth ${d + 1} ${Math.round((100 * this.kept[d]) / n)} percent`);
    $("depths").setAttribute("aria-label", words.length ? `Acceptance by depth: ${words.join(", ")}` : "No drafts");
  }

  showStrip() {
    const deepest = Math.max(1, ...this.steps.map((step) => step.drafted));
    const strip = $("strip");
    strip.setAttribute("viewBox", `0 0 ${STEPS} ${deepest}`);
    const from = STEPS - this.steps.length;
    const box = (i, y, height, name) => svg("rect", { x: from + i + 0.1, y, width: 0.8, height, class: name });
    const boxes = this.steps.flatMap(({ drafted, accepted }, i) => {
      if (drafted === 0) return [box(i, deepest - 0.14, 0.14, "none")];
      const name = (d) => (d < accepted ? `d${Math.min(d + 1, 8)}` : "missed");
      return Array.from({ length: drafted }, (_, d) => box(i, deepest - d - 0.94, 0.88, name(d)));
    });
    strip.replaceChildren(...boxes);
  }
}
