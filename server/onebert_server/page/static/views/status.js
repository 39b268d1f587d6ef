// What is in force for one task: the meaning of its aliases, figures, alarm, thresholds and last moves.

import { may } from "../api.js";
import { flat } from "../data.js";
import { html } from "../lib.js";
import { ago, date, fixed, many, moved, number, percent } from "../parts.js";

const none = html`<span class="quiet">none</span>`;

/** `versions`: how many the task has; `change({kind, alias, version})` opens the dialog of a change. */
export function Status({ status, versions, change }) {
  return html`
    <section class="card status" aria-label="In force">
      <${Places} aliases=${status.aliases} versions=${versions} change=${may("promote", status.name) && change} />
      ${status.alarm && html`<${Alarm} alarm=${status.alarm} />`}
      ${(status.candidates ?? []).map((verdict) => html`<${Verdict} live=${status.live.version} verdict=${verdict} />`)}
      ${status.shadows.map((agreement) => html`<${Agreement} ...${agreement} />`)}
      ${Object.entries(status.unavailable).map(([version, reason]) => html`<p class="error"><b>Version ${version} is unavailable:</b> ${reason}</p>`)}
      <dl>${facts(status).map(([name, value, more]) => html`
        <div><dt>${name}</dt><dd>${value}${more && html`<span class="quiet more">${more}</span>`}</dd></div>`)}</dl>
      ${status.decision && html`<${Decision} decision=${status.decision} />`}
      ${status.next && html`<p class="quiet small">Next: <code class="wrap">${status.next}</code></p>`}
    </section>
    ${status.moves.length > 0 && html`<${Moves} moves=${status.moves} />`}`;
}

function facts({ score, a_minute, p95, abstained, cut, gate, kept, feedback, new_labels, base }) {
  return [
    [score ? `${score.metric}, ${score.where}` : "Score", score ? fixed(score.value, 3) : "–"],
    ["Requests a minute", fixed(a_minute), p95 !== null && `p95 ${fixed(1000 * p95, 0)} ms`],
    ["Abstained", percent(abstained), cut !== null && `${percent(cut)} cut`],
    ["Gate", gate ? many(gate.checks, "check") : none, gate && `${many(gate.rows, "pinned row")}, of ${gate.aliases.join(", ")}`],
    ["Kept answers", kept ? percent(kept.share, 0) : none, kept && `for ${many(kept.days, "day")}`],
    ["Feedback waiting", feedback === null ? "–" : number(feedback), newLabels(new_labels)],
    ["Base", base?.split("/").at(-1) ?? "–"],
  ];
}

const newLabels = (labels) => labels && Object.entries(labels).map(([label, rows]) => `new label ${label}: ${number(rows)}`).join(", ");

/** Each alias in the server's words, with what a person may do to it. */
const Places = ({ aliases, versions, change }) => html`
  <ul role="list" class="places" aria-label="Aliases">
    ${aliases.toSorted((a, b) => (b.alias === "live") - (a.alias === "live")).map((alias) => html`<${Place} key=${alias.alias} alias=${alias} versions=${versions} change=${change} />`)}
    ${!aliases.some(({ alias }) => alias === "live") && html`<li>No version is live: requests have to name one.</li>`}
  </ul>`;

function Place({ alias, versions, change }) {
  const { alias: name, words, previous, previous_words: before, target } = alias;
  const others = versions > Object.keys(target?.split ?? { [alias.version]: 100 }).length;
  const button = (kind, text, label, more) => html`<button type="button" class="slight" aria-label=${label} onClick=${() => change({ kind, alias, ...more })}>${text}</button>`;
  return html`
    <li>
      <span class=${name === "live" ? "tag live" : "tag"}>${name}</span> <b class="wrap">${words}</b>
      ${change && html`<span class="buttons">
        ${versions > 1 && button("split", "Split…", `Split ${name}`)}
        ${others && button("shadow", "Shadow…", `Add a shadow to ${name}`)}
        ${target?.shadow?.map(({ version }) => button("unshadow", `End shadow ${version}`, `End shadow ${version} of ${name}`, { version }))}
        ${previous && button("back", `Roll back to ${before}`, `Roll ${name} back to ${before}`)}
      </span>`}
    </li>`;
}

const WORDS = { promote: "is better", roll_back: "is worse", not_yet: "is not proven better or worse" };

/** A candidate beside the live version, by feedback. */
const Verdict = ({ live, verdict: { version, wins, losses, alike, verdict } }) => html`
  <p><span class=${verdict === "roll_back" ? "tag bad" : "tag"}>verdict</span> Version ${version} <b>${WORDS[verdict]}</b> beside ${live}, by feedback: ${many(wins, "win")}, ${many(losses, "loss", "losses")}, ${number(alike)} alike.</p>`;

const Agreement = ({ version, shadow, answers, same }) => html`
  <p><span class="tag">shadow</span> Version ${version} and shadow ${shadow}: ${answers ? html`<b>${percent(same / answers)}</b> of ${many(answers, "answer")} alike` : "no answers yet"}.</p>`;

/** An alarm in words, and the answers it came from. */
function Alarm({ alarm: { since, version, words, shift, scores } }) {
  return html`
    <section class="alarm" aria-label="Alarm">
      <p><span class="tag bad">alarm</span> Version ${version}, since ${date(since)}: <b>${words}</b>.${shift && html` Moved most: <b class="wrap">${moved(shift)}</b>.`}</p>
      ${scores && html`<${Histogram} ...${scores} />`}
    </section>`;
}

/** Shares of answers by their top score, beside those of the reference. */
function Histogram({ edges, reference, live }) {
  const [before, now] = [reference, live].map((counts) => {
    const all = counts.reduce((sum, count) => sum + count, 0) || 1;
    return counts.map((count) => count / all);
  });
  const most = Math.max(...before, ...now);
  const cell = (share) => html`<td><span>${percent(share, 0)}</span><span class="bar" aria-hidden="true"><i style=${{ width: `${(100 * share) / most}%` }}></i></span></td>`;
  return html`
    <details>
      <summary>Answers by their top score</summary>
      <table class="facts histogram">
        <thead><tr><th scope="col">Top score</th><th scope="col">Reference</th><th scope="col">Now</th></tr></thead>
        <tbody>${before.map((share, at) => html`
          <tr><th scope="row">${at < edges.length ? `to ${fixed(edges[at], 3)}` : "above"}</th>${cell(share)}${cell(now[at])}</tr>`)}</tbody>
      </table>
    </details>`;
}

/** The rules by which live answers are read, exact: a threshold of 0.999998 lets answers through, a rounded one of 1 none. */
function Decision({ decision: { thresholds = {}, positives = [], ...rest } }) {
  const labels = [...new Set([...Object.keys(thresholds ?? {}), ...(positives ?? [])])];
  return html`
    <dl class="rules">
      ${labels.map((label) => html`<div><dt class="wrap">${label}</dt><dd>${label in thresholds ? `threshold ${thresholds[label]}` : "no threshold"}${positives.includes(label) && html` <span class="tag">positive</span>`}</dd></div>`)}
      ${flat(rest, true).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>`;
}

const Moves = ({ moves }) => html`
  <h2 id="moves">Last moves</h2>
  <ul role="list" class="moves" aria-labelledby="moves">${moves.map(({ at, alias, what, who, reason, past_gate, failed }) => html`
    <li><span class="quiet" title=${date(at)}>${ago(at)}</span> <span><b class="wrap">${what}</b>${alias !== "live" && html` <span class="tag">${alias}</span>`}</span>
      <span class="wrap">${past_gate && html`<span class="tag bad">past the gate</span> ${failed.join(", ")} `}<span class="quiet">${who}${reason && `: ${reason}`}</span></span></li>`)}</ul>`;
