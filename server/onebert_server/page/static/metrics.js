// Parses Prometheus' text format and computes the changes between two scrapes.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Parses a text to `[{name, labels, value}]`. */
export function samples(text) {
  return text.split("\n").flatMap((line) => {
    const found = SAMPLE.exec(line);
    if (!found) return [];
    const labels = Object.fromEntries(Array.from((found[2] ?? "").matchAll(LABEL), ([, name, value]) => [name, value]));
    return [{ name: found[1], labels, value: Number(found[3].replace("Inf", "Infinity")) }];
  });
}

/** The sum of a metric's samples that `fits` accepts. */
export const sum = (found, name, fits = () => true) =>
  found.reduce((total, one) => (one.name === name && fits(one.labels) ? total + one.value : total), 0);

/** A histogram's cumulative counts by upper bound, summed over all other labels. */
export function buckets(found, name, fits = () => true) {
  const counts = new Map();
  for (const one of found) {
    if (one.name !== `${name}_bucket` || !fits(one.labels)) continue;
    const bound = Number(one.labels.le.replace("Inf", "Infinity"));
    counts.set(bound, (counts.get(bound) ?? 0) + one.value);
  }
  return [...counts].sort(([one], [other]) => one - other);
}

/** Prometheus' `histogram_quantile` of the observations between two scrapes; null without any. */
export function quantile(q, before, after) {
  const known = new Map(before);
  const came = after.map(([bound, count]) => [bound, count - (known.get(bound) ?? 0)]);
  const total = came.at(-1)?.[1] ?? 0;
  if (!(total > 0)) return null;
  const rank = q * total;
  const at = came.findIndex(([, count]) => count >= rank);
  const [bound, count] = came[at];
  const [from, under] = at > 0 ? came[at - 1] : [0, 0];
  if (!Number.isFinite(bound)) return from;
  return from + (bound - from) * ((rank - under) / (count - under || 1));
}
