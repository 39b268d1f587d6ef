// Shows which words of a text mattered: the server leaves out each one once and runs the version again.

import { ask, path } from "../api.js";
import { note, py, pyInput } from "../calls.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { many, Refused } from "../parts.js";
import { signed } from "./answers.js";

const NAMED = 8;

export function Words({ result, given }) {
  const [state, setState] = useState({});
  const button = useRef();
  if (!result.scores || result.label === undefined) return null;
  const find = async () => {
    if (state.busy) return;
    setState({ busy: true });
    try {
      const found = await explained(result, given);
      // The new content takes over the button's focus.
      setState({ found, focused: document.activeElement === button.current });
    } catch (error) {
      setState({ error });
    }
  };
  return html`
    ${!state.found && html`<p><button type="button" class="slight" ref=${button} aria-disabled=${state.busy} onClick=${find}>${state.busy ? "Asking…" : "Which words mattered?"}</button></p>`}
    ${state.error && html`<${Refused} error=${state.error} />`}
    ${state.found && html`<${Found} name=${`${result.task} ${result.version}`} label=${result.label} sides=${state.found} focused=${state.focused} />`}`;
}

/** The texts in parts; parts that were left out have `effect`: how much lower the label's score is without them. */
async function explained(result, { text, pair }) {
  const ref = `${result.task}@${result.version}`;
  const where = path`/v1/tasks/${ref}/classify`;
  const body = { inputs: pair ? { text, text_pair: pair } : text, explain: true };
  const { value } = await ask("POST", where, { body });
  note({ method: "POST", path: where, body, python: `classify(${py(ref)}, ${pyInput(text, pair)}, explain=True)` });
  const { words } = value.results[0].explanation;
  return [["text", text], ["text_pair", pair]]
    .filter(([, side]) => side)
    .map(([field, side]) => parts(side, words.filter((one) => one.field === field)));
}

/** A text cut at some words' offsets, which count code points. */
function parts(text, words) {
  const points = Array.from(text);
  const found = [];
  let at = 0;
  for (const { start, end, effect } of words) {
    found.push({ text: points.slice(at, start).join("") }, { text: points.slice(start, end).join(""), effect });
    at = end;
  }
  return [...found, { text: points.slice(at).join("") }];
}

function Found({ name, label, sides, focused }) {
  const section = useRef();
  useEffect(() => {
    if (focused) section.current.focus();
  }, []);
  const stretches = sides.flat().filter(({ effect }) => effect !== undefined);
  const most = Math.max(0.02, ...stretches.map(({ effect }) => Math.abs(effect)));
  const named = [...stretches].sort((one, other) => Math.abs(other.effect) - Math.abs(one.effect)).slice(0, NAMED);
  return html`
    <section class="mattered" ref=${section} tabindex="-1" aria-label=${`Words that mattered to ${name}`}>
      <p class="quiet small">${stretches.length > 0
        ? html`Tinted words raise the score of <b class="wrap">${label}</b>, underlined ones lower it: each was left out once.`
        : "Of a single word nothing can be left out."}</p>
      ${sides.map((of) => html`<p class="marked">${of.map((part) => html`<${Part} ...${part} most=${most} />`)}</p>`)}
      ${stretches.length > 0 && html`<table class="scores">
        <caption class="unseen">What the score of ${label} has by each word; ${many(stretches.length, "part")} of the text were left out</caption>
        <thead class="unseen"><tr><th scope="col">Word</th><th scope="col">Effect</th></tr></thead>
        <tbody>${named.map(({ text, effect }) => html`<tr><th scope="row"><span class="wrap">${text.trim()}</span></th><td>${signed(effect)}</td></tr>`)}</tbody>
      </table>`}
    </section>`;
}

function Part({ text, effect, most }) {
  if (effect === undefined) return text;
  const share = Math.min(1, Math.abs(effect) / most);
  if (share < 0.08) return text;
  return html`<span class=${effect > 0 ? "raises" : "lowers"} style=${{ "--share": `${Math.round(share * 100)}%` }} title=${signed(effect)}>${text}</span>`;
}
