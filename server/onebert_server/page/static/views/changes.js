// What a delta changes, as a heat map by layer and symbol, beside another version's and their difference.

import { ask, path } from "../api.js";
import { html, useLoaded, useMemo } from "../lib.js";
import { decimal, Refused, Waiting } from "../parts.js";

// The order in which a layer computes; what is not here comes last.
const ORDER = ["b_q", "b_k", "b_v", "W_q", "W_k", "W_v", "b_m1", "W_m1", "b_LN1", "g_LN1", "b_m2", "W_m2", "b_m3", "W_m3", "b_LN2", "g_LN2"];
const rank = (symbol) => (ORDER.includes(symbol) ? ORDER.indexOf(symbol) : ORDER.length);

const changesOf = async (name, version, query = "") =>
  (await ask("GET", `${path`/v1/tasks/${name}/versions/${version}/changes`}${query}`)).value;

export function Changes({ task, one, other }) {
  const loaded = useLoaded(
    () => Promise.all([changesOf(task.name, one), changesOf(task.name, other), changesOf(task.name, one, `?against=${other}`)]),
    [task.name, one, other],
  );
  const maps = useMemo(() => loaded.value?.map(grid), [loaded.value]);
  if (loaded.error) return html`<${Refused} error=${loaded.error} />`;
  if (!maps) return html`<${Waiting} />`;
  const columns = [...new Set(maps.flatMap(({ symbols }) => symbols))].sort((left, right) => rank(left) - rank(right) || left.localeCompare(right));
  const layers = [...new Set(maps.flatMap((map) => map.layers))].sort((left, right) => left - right);
  const most = Math.max(...maps.flatMap((map) => [...map.cells.values()]), 1e-12);
  const titles = [`Version ${one}`, `Version ${other}`, `Difference of ${one} and ${other}`];
  return html`
    <h3 id="changed">What is changed, by layer and symbol</h3>
    <p class="quiet small">Each field is the length (L2) of what a version adds to the base there; the stronger its colour, the longer. All three have one scale, up to ${decimal(most)}.</p>
    <div class="maps">${maps.map((map, at) => html`<${HeatMap} title=${titles[at]} map=${map} columns=${columns} layers=${layers} most=${most} />`)}</div>`;
}

/** Norms of all kinds at one place together: they lie beside each other, so their squares add up. */
function grid({ changes }) {
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

const HeatMap = ({ title, map, columns, layers, most }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label=${`${title}, what is changed`}>
    <table class="heat">
      <caption>${title}</caption>
      <thead><tr><th scope="col"><span class="unseen">Layer</span></th>${columns.map((symbol) => html`<th scope="col">${symbol}</th>`)}</tr></thead>
      <tbody>${layers.map((layer) => html`
        <tr><th scope="row">${layer < 0 ? "–" : layer}</th>${columns.map((symbol) => {
          const norm = map.cells.get(`${layer} ${symbol}`);
          const share = norm === undefined ? 0 : Math.max(6, Math.round((norm / most) * 100));
          return html`<td style=${{ "--share": `${share}%` }} title=${norm === undefined ? null : `${symbol}, layer ${layer}: ${decimal(norm)}`}><span class="unseen">${norm === undefined ? "unchanged" : decimal(norm)}</span></td>`;
        })}</tr>`)}</tbody>
    </table>
  </div>`;
