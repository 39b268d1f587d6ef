// Which words of a text mattered: each is left out once, and the version is asked again, all in one request.

import { ask, path } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { many, Refused } from "../parts.js";
import { signed } from "./answers.js";

// Inputs of one request; the first one is the whole text.
const MOST = 64;
const NAMED = 8;

/**
 * A text in parts, of which those with `word` can be left out: its words, or where there are more of them than can be
 * asked about at once, as many of them together as it takes.
 */
export function split(text, most) {
  const words = new Intl.Segmenter(undefined, { granularity: "word" });
  const parts = Array.from(words.segment(text), ({ segment, isWordLike }) => ({ text: segment, word: Boolean(isWordLike) }));
  const together = Math.ceil(parts.filter(({ word }) => word).length / most);
  const found = [];
  let held = 0;
  for (const part of parts) {
    const before = found.at(-1);
    if (before && held > 0 && (held < together || !part.word) && (together > 1 || !part.word === !before.word)) {
      before.text += part.text;
      held += part.word ? 1 : 0;
    } else {
      found.push({ ...part });
      held = part.word ? 1 : 0;
    }
  }
  return found;
}

export function Words({ result, given }) {
  const [state, setState] = useState({});
  const button = useRef();
  const sides = useMemo(() => {
    const room = given.pair ? Math.floor((MOST - 1) / 2) : MOST - 1;
    return [given.text, given.pair].filter(Boolean).map((text) => split(text, room));
  }, [given]);
  const count = sides.flat().filter(({ word }) => word).length;
  if (!result.scores || result.label === undefined || count < 2) return null;
  const find = async () => {
    if (state.busy) return;
    setState({ busy: true });
    try {
      const found = await effects(result, sides);
      // What comes in the button's place takes its focus over.
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

/** The parts again, those that can be left out with `effect`: how much less the label's score is without them. */
async function effects(result, sides) {
  const places = sides.flatMap((parts, side) => parts.flatMap(({ word }, at) => (word ? [{ side, at }] : [])));
  const without = (side, at) => sides.map((parts, other) => parts.filter((_, index) => other !== side || index !== at).map(({ text }) => text).join(""));
  const asked = places.map((place) => ({ ...place, texts: without(place.side, place.at) })).filter(({ texts }) => texts.every((text) => text.trim()));
  const inputs = [sides.map((parts) => parts.map(({ text }) => text).join("")), ...asked.map(({ texts }) => texts)];
  const { value } = await ask("POST", path`/v1/tasks/${`${result.task}@${result.version}`}/classify`, {
    body: { inputs: inputs.map(([text, pair]) => (pair ? { text, text_pair: pair } : { text })) },
  });
  const [whole, ...rest] = value.results.map(({ scores }) => scores[result.label]);
  const found = sides.map((parts) => parts.map((part) => ({ ...part })));
  asked.forEach(({ side, at }, index) => (found[side][at].effect = whole - rest[index]));
  return found;
}

function Found({ name, label, sides, focused }) {
  const section = useRef();
  useEffect(() => {
    if (focused) section.current.focus();
  }, []);
  const parts = sides.flat().filter(({ effect }) => effect !== undefined);
  const most = Math.max(0.02, ...parts.map(({ effect }) => Math.abs(effect)));
  const named = [...parts].sort((one, other) => Math.abs(other.effect) - Math.abs(one.effect)).slice(0, NAMED);
  return html`
    <section class="mattered" ref=${section} tabindex="-1" aria-label=${`Words that mattered to ${name}`}>
      <p class="quiet small">Tinted words raise the score of <b class="wrap">${label}</b>, underlined ones lower it: each was left out once.</p>
      ${sides.map((of) => html`<p class="marked">${of.map((part) => html`<${Part} ...${part} most=${most} />`)}</p>`)}
      <table class="scores">
        <caption class="unseen">What the score of ${label} has by each word; ${many(parts.length, "part")} of the text were left out</caption>
        <thead class="unseen"><tr><th scope="col">Word</th><th scope="col">Effect</th></tr></thead>
        <tbody>${named.map(({ text, effect }) => html`<tr><th scope="row"><span class="wrap">${text.trim()}</span></th><td>${signed(effect)}</td></tr>`)}</tbody>
      </table>
    </section>`;
}

function Part({ text, effect, most }) {
  if (effect === undefined) return text;
  const share = Math.min(1, Math.abs(effect) / most);
  if (share < 0.08) return text;
  return html`<span class=${effect > 0 ? "raises" : "lowers"} style=${{ "--share": `${Math.round(share * 100)}%` }} title=${signed(effect)}>${text}</span>`;
}
