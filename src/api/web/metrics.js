// Reads the text of /metrics, and makes rates and quantiles of two readings.

/** All values by their name with labels, as the text has them. */
export function parse(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const at = line.lastIndexOf("} ");
    const [name, value] = at < 0 ? line.split(" ") : [line.slice(0, at + 1), line.slice(at + 2).split(" ")[0]];
    values.set(name, Number(value));
  }
  return values;
}

/** How much a counter grew between two readings. */
export const grown = (from, to, name) => (to.get(name) ?? 0) - (from.get(name) ?? 0);

/** The values of a family by one of its labels; those that have `other` too (`name="value"`), where that is given. */
export function byLabel(values, family, label, other = "") {
  const found = new Map();
  for (const [name, value] of values) {
    if (!name.startsWith(`${family}{`) || !name.includes(other)) continue;
    const match = name.match(new RegExp(`[{,]${label}="([^"]*)"`));
    if (match) found.set(match[1], value);
  }
  return found;
}

/**
 * A quantile of what a histogram took in between two readings, in its unit; NaN when that is nothing. `label` (`{name="value"}`)
 * chooses one histogram of a family.
 */
export function quantile(from, to, family, q, label = "") {
  const other = label.slice(1, -1);
  const before = byLabel(from, `${family}_bucket`, "le", other);
  const buckets = [...byLabel(to, `${family}_bucket`, "le", other)].map(([bound, n]) => ({
    bound: bound === "+Inf" ? Infinity : Number(bound),
    n: n - (before.get(bound) ?? 0),
  }));
  buckets.sort((a, b) => a.bound - b.bound);
  const all = buckets.at(-1)?.n ?? 0;
  if (all <= 0) return NaN;
  const wanted = q * all;
  let [lower, below] = [0, 0];
  for (const { bound, n } of buckets) {
    if (n >= wanted) {
      if (bound === Infinity) return lower;
      // Even within a bucket, for want of better knowledge.
      return lower + ((bound - lower) * (wanted - below)) / Math.max(n - below, 1e-9);
    }
    [lower, below] = [bound, n];
  }
  return lower;
}
