// Two versions side by side: the differences of their manifests.

import { flat, learned, manifestOf, measured } from "../data.js";
import { html, useLoaded, useMemo, useState } from "../lib.js";
import { bytes, date, fixed, many, Refused, Waiting } from "../parts.js";
import { link, stay } from "../route.js";

export function Compare({ task, query }) {
  const numbers = task.versions.map((one) => one.version);
  const known = (given) => (numbers.includes(Number(given)) ? Number(given) : null);
  const one = known(query.version) ?? task.aliases.live ?? numbers[0];
  const before = known(task.previous.live);
  const other = known(query.beside) ?? [before, numbers.find((at) => at < one), numbers.find((at) => at !== one)].find((at) => at && at !== one);
  if (!other) return null;
  const choose = (version, beside) => stay(["tasks", task.name], { version, beside });
  return html`
    <section class="compare" aria-labelledby="compare">
      <h2 id="compare">What differs</h2>
      <form class="pair" onSubmit=${(event) => event.preventDefault()}>
        <${Choice} label="Version" value=${one} numbers=${numbers} choose=${(at) => choose(at, other)} />
        <${Choice} label="beside" value=${other} numbers=${numbers} choose=${(at) => choose(one, at)} />
        <a href=${link(["try"], { task: `${task.name}@${one}`, beside: `${task.name}@${other}` })}>Try both</a>
      </form>
      <${Facts} task=${task} one=${one} other=${other} />
    </section>`;
}

const Choice = ({ label, value, numbers, choose }) => html`
  <span><label for=${`choice-${label}`}>${label}</label> <select id=${`choice-${label}`} value=${value} onChange=${(event) => choose(Number(event.currentTarget.value))}>
    ${numbers.map((at) => html`<option value=${at} selected=${at === value}>${at}</option>`)}
  </select></span>`;

/** The facts that decide between two versions; the manifests are folded. */
function Facts({ task, one, other }) {
  const [all, setAll] = useState(false);
  const { value, error, again } = useLoaded(() => Promise.all([one, other].map((at) => described(task, at))), [task.name, one, other]);
  const rows = useMemo(() => value && sideBySide(...value.map(({ rest }) => rest)), [value]);
  if (error) return html`<${Refused} error=${error} again=${again} />`;
  if (!rows) return html`<${Waiting} />`;
  const differ = rows.filter(([, left, right]) => left !== right);
  const numbers = [one, other];
  return html`
    <${SideBySide} label="Facts of both" numbers=${numbers} rows=${sideBySide(...value.map(({ facts }) => facts))} />
    <details>
      <summary>${differ.length ? `${many(differ.length, "entry", "entries")} of the manifests differ` : "The manifests do not differ"}</summary>
      <${SideBySide} label="Manifests of both" numbers=${numbers} rows=${all ? rows : differ} />
      <label class="check"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.currentTarget.checked)} /> Show what is the same, too</label>
    </details>`;
}

const SideBySide = ({ label, numbers, rows }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class="facts">
      <thead><tr><th scope="col"><span class="unseen">Fact</span></th>${numbers.map((at) => html`<th scope="col">Version ${at}</th>`)}</tr></thead>
      <tbody>${rows.map(([name, left, right]) => html`
        <tr class=${left === right ? "" : "differs"}><th scope="row">${name}</th><td>${left ?? "–"}</td><td>${right ?? "–"}</td></tr>`)}</tbody>
    </table>
  </div>`;

async function described(task, at) {
  const { digest, size, created_at, method } = task.versions.find(({ version }) => version === at);
  const manifest = await manifestOf(task.name, at, digest);
  const { labels, golden, training, ...rest } = manifest;
  const found = measured(manifest);
  return {
    facts: [
      ["score", found ? `${fixed(found.value, 3)} ${found.name}, ${found.where}` : "–"], ["data", learned(manifest).filter(Boolean).join(", ") || "–"],
      ["method", method ?? "–"], ["labels", labels.join(", ")], ["size", bytes(size)],
    ],
    rest: [["made", date(created_at)], ["digest", `${digest.slice(0, 19)}…`], ...flat(rest, true), ...flat(training)],
  };
}

function sideBySide(left, right) {
  const [first, second] = [new Map(left), new Map(right)];
  return [...new Map([...left, ...right]).keys()].map((name) => [name, first.get(name), second.get(name)]);
}
