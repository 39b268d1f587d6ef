// Heat maps of a delta's changes by layer and symbol: for one version, or for two and their difference.

import { ask, path } from "../api.js";
import { html, useLoaded, useMemo, useState } from "../lib.js";
import { decimal, Refused, Waiting } from "../parts.js";

// The order of computation in a layer; other symbols come last.
const ORDER = ["b_q", "b_k", "b_v", "W_q", "W_k", "W_v", "b_m1", "W_m1", "b_LN1", "g_LN1", "b_m2", "W_m2", "b_m3", "W_m3", "b_LN2", "g_LN2"];
const rank = (symbol) => (ORDER.includes(symbol) ? ORDER.indexOf(symbol) : ORDER.length);

// Kind of a change -> its name, and the meaning of its numbers. Lengths of different kinds are not comparable, so each kind has its own
// maps and scale.
const KINDS = {
  added: ["Biases and gains", "of what is added to each"],
  "low-rank": ["Low-rank changes of weights", "of the product BA that is added to each weight"],
  sparse: ["Single weights", "of what is added to those that are changed"],
  adapter: ["Adapters", "of each adapter's second map"],
  scale: ["Factors", "of how far each module's factors are from one"],
  core: ["Low-rank cores", "of the matrix between the base's own singular directions"],
  "output-scale": ["Factors of outputs", "of how far each output's factors are from one"],
};

const changesOf = async (name, version, signal, query = "") =>
  (await ask("GET", `${path`/v1/tasks/${name}/versions/${version}/changes`}${query}`, { signal })).value.changes;

/** The changes of one of a task's `versions`, or of two side by side: folded, and asked for when they are opened. */
export function Changes({ task, versions }) {
  const [open, setOpen] = useState(false);
  return html`
    <details id="changed" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary>What is changed in the base, layer by layer</summary>
      ${open && html`<${Maps} task=${task} versions=${versions} />`}
    </details>`;
}

function Maps({ task, versions: [one, other] }) {
  const { value, error, again } = useLoaded((signal) => Promise.all([
    changesOf(task.name, one, signal),
    ...(other ? [changesOf(task.name, other, signal), changesOf(task.name, one, signal, `?against=${other}`)] : []),
  ]), [task.name, one, other]);
  const kinds = useMemo(() => value && Object.keys(KINDS).filter((kind) => value.flat().some((change) => change.kind === kind)), [value]);
  const titles = [`Version ${one}`, `Version ${other}`, `Difference of ${one} and ${other}`];
  return html`
    ${error ? html`<${Refused} error=${error} again=${again} />` : !kinds && html`<${Waiting} />`}
    ${kinds?.length === 0 && html`<p>Nothing of the base: only the head is trained.</p>`}
    ${kinds?.map((kind) => html`<${Kind} key=${kind} kind=${kind} lists=${value} titles=${titles} />`)}`;
}

/** The maps of one kind of change, on one scale. */
function Kind({ kind, lists, titles }) {
  const [name, measure] = KINDS[kind];
  const maps = lists.map((changes) => grid(changes.filter((change) => change.kind === kind)));
  const columns = [...new Set(maps.flatMap(({ symbols }) => symbols))].sort((left, right) => rank(left) - rank(right) || left.localeCompare(right));
  const layers = [...new Set(maps.flatMap((map) => map.layers))].sort((left, right) => left - right);
  const most = Math.max(...maps.flatMap((map) => [...map.cells.values()]), 1e-12);
  return html`
    <h3>${name}</h3>
    <p class="quiet small">The length (L2) ${measure}; the stronger its colour, the longer, up to ${decimal(most)}${maps.length > 1 && " in all three maps"}.</p>
    <div class="maps">${maps.map((map, at) => html`
      <${HeatMap} title=${titles[at]} label=${`${name}, ${titles[at]}`} map=${map} columns=${columns} layers=${layers} most=${most} />`)}</div>`;
}

/** Lengths by place. Several parts of one symbol in a layer are parts of one vector, so their squares add up. */
function grid(changes) {
  const squares = new Map();
  for (const { symbol, layer, norm } of changes) {
    const place = `${layer ?? -1} ${symbol}`;
    squares.set(place, (squares.get(place) ?? 0) + norm * norm);
  }
  return {
    cells: new Map([...squares].map(([place, square]) => [place, Math.sqrt(square)])),
    symbols: changes.map(({ symbol }) => symbol),
    layers: changes.map(({ layer }) => layer ?? -1),
  };
}

const where = (layer) => (layer < 0 ? "outside the layers" : `layer ${layer}`);

const HeatMap = ({ title, label, map, columns, layers, most }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class="heat">
      <caption>${title}</caption>
      <thead><tr><th scope="col"><span class="unseen">Layer</span></th>${columns.map((symbol) => html`<th scope="col">${symbol}</th>`)}</tr></thead>
      <tbody>${layers.map((layer) => html`
        <tr><th scope="row" aria-label=${where(layer)}>${layer < 0 ? "–" : layer}</th>${columns.map((symbol) => {
          const norm = map.cells.get(`${layer} ${symbol}`);
          const share = norm === undefined ? 0 : Math.max(6, Math.round((norm / most) * 100));
          return html`<td style=${{ "--share": `${share}%` }} title=${norm === undefined ? null : `${symbol}, ${where(layer)}: ${decimal(norm)}`}><span class="unseen">${norm === undefined ? "unchanged" : decimal(norm)}</span></td>`;
        })}</tr>`)}</tbody>
    </table>
  </div>`;
