// Shows one answer of any task type.

import { manifestOf } from "../data.js";
import { html, useEffect, useState } from "../lib.js";
import { decimal, number, probability } from "../parts.js";

const AT_FIRST = 8;

/** The time until the response, and the server's share if it reports one. */
export function Took({ ms, headers }) {
  const phases = (headers?.get("Server-Timing") ?? "").split(",").flatMap((one) => {
    const [name, ...rest] = one.trim().split(";");
    const took = rest.map((part) => part.trim()).find((part) => part.startsWith("dur="));
    return name && took ? [`${name} ${Number(took.slice(4)).toFixed(1)}`] : [];
  });
  return html`<p class="quiet" id="took">Answered in ${ms.toFixed(1)} ms${phases.length > 0 && `, in the server: ${phases.join(", ")}`}</p>`;
}

export function Answer({ result, given, beside }) {
  return html`
    ${result.error && html`<p class="error">${result.error.title}: ${result.error.detail}</p>`}
    ${result.abstained && html`<p><span class="tag">abstained</span></p>`}
    ${result.labels?.length === 0 && html`<p><span class="tag">nothing flagged</span></p>`}
    ${result.scores && html`<${Scores} result=${result} beside=${beside?.scores} />`}
    ${result.entities ? html`<${Marked} text=${given.text} spans=${result.entities} />` : result.words && html`<${Marked} text=${given.text} spans=${result.words} />`}
    ${result.answers && html`<${Answers} answers=${result.answers} context=${given.pair} />`}
    ${result.tokens !== undefined && html`<p class="quiet small">${number(result.tokens)} tokens${result.truncated && html`; <b>the text was cut</b>`}</p>`}`;
}

/**
 * Whether an answer's scores are probabilities; the answer itself does not tell. A regression's scores are values: a classification has two
 * labels or more, or a threshold.
 */
export function probable({ scores, labels }) {
  const values = Object.values(scores);
  return (labels !== undefined || values.length > 1) && values.every((score) => score >= 0 && score <= 1);
}

/** The thresholds of a version by label, as its manifest has them; a multi-label task's others are the usual one. */
function useThresholds({ task, version, digest, labels, scores }) {
  const [manifest, setManifest] = useState(null);
  useEffect(() => {
    // An answer without thresholds has no list of labels.
    if (labels && digest) manifestOf(task, version, digest).then(setManifest, () => setManifest(null));
  }, [task, version, digest, !labels]);
  if (!manifest) return {};
  const usual = manifest.decision?.activation === "none" ? 0 : 0.5;
  const rest = manifest.task_type === "multi_label" ? Object.fromEntries(Object.keys(scores).map((label) => [label, usual])) : {};
  return { ...rest, ...manifest.decision?.thresholds };
}

/** Probabilities as bars, with a line at each threshold and a tick over it; a regression's values have no bars. */
function Scores({ result, beside }) {
  const [all, setAll] = useState(false);
  const thresholds = useThresholds(result);
  const rows = Object.entries(result.scores);
  const bars = probable(result);
  // Sorted again, because parsing JSON moves names that are numbers to the front.
  if (bars) rows.sort(([, one], [, other]) => other - one);
  const chosen = new Set(result.labels ?? [result.label]);
  return html`
    <table class="scores">
      <thead class="unseen"><tr><th scope="col">Label</th><th scope="col">Score</th>${beside && html`<th scope="col">More than beside it</th>`}</tr></thead>
      <tbody>${rows.slice(0, all ? rows.length : AT_FIRST).map(([label, score]) => html`
        <tr class=${chosen.has(label) ? "chosen" : ""}>
          <th scope="row">
            <span class="wrap">${label}</span>${result.labels?.includes(label) && html` <span class="over">✓<span class="unseen"> over its threshold</span></span>`}
            ${Object.hasOwn(thresholds, label) && html` <span class="quiet small">threshold ${thresholds[label]}</span>`}
            ${bars && html`<span class="bar" aria-hidden="true"><i style=${{ width: `${score * 100}%` }}></i>${Object.hasOwn(thresholds, label) && html`<b style=${{ left: `${thresholds[label] * 100}%` }}></b>`}</span>`}</th>
          <td>${bars ? probability(score) : decimal(score, 4)}</td>
          ${beside && html`<td class="quiet">${Object.hasOwn(beside, label) ? signed(score - beside[label]) : "–"}</td>`}
        </tr>`)}</tbody>
    </table>
    ${rows.length > AT_FIRST && html`<button type="button" class="slight" onClick=${() => setAll(!all)}>${all ? `The first ${AT_FIRST}` : `All ${number(rows.length)}`} labels</button>`}`;
}

export const signed = (value) => (Math.abs(value) < 0.0005 ? "±0" : `${value > 0 ? "+" : "−"}${probability(Math.abs(value))}`);

/** A text with its labeled spans; offsets count code points. */
function Marked({ text, spans }) {
  const points = Array.from(text);
  const parts = [];
  let at = 0;
  for (const { start, end, label, score } of spans.filter((one) => one.label !== "O")) {
    parts.push(points.slice(at, start).join(""));
    parts.push(html`<mark>${points.slice(start, end).join("")}<span class="label">${label} ${probability(score)}</span></mark>`);
    at = end;
  }
  parts.push(points.slice(at).join(""));
  return html`<p class="marked">${parts}</p>${parts.length === 1 && html`<p class="quiet">Nothing was found.</p>`}`;
}

function Answers({ answers, context }) {
  if (!answers.length) return html`<p class="quiet">There is no answer in the text.</p>`;
  const spans = [{ ...answers[0], label: "answer" }];
  return html`<${Marked} text=${context} spans=${spans} />`;
}
