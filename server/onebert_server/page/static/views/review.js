// The review queue of one task: kept texts, labeled one at a time by keys, mouse or screen reader.

import { ask, path } from "../api.js";
import { note, py } from "../calls.js";
import { html, useEffect, useLayoutEffect, useLoaded, useRef, useState } from "../lib.js";
import { number, Refused, say, Waiting } from "../parts.js";
import { link } from "../route.js";
import { Answer } from "./answers.js";

const ORDERS = { margin: "least sure first", disagreement: "where versions disagree first" };
// Texts of a page, and at most, since skipped ones come again.
const PAGE = 20;
const MOST = 100;
const TYPES = ["single_label", "multi_label"];
// The server chooses from so many texts at most.
const COMPARED = 1000;
const NOTHING = { left: [], done: [], skipped: [], ended: false, compared: null, before: 0 };

const worded = (right) => (Array.isArray(right) ? right.join(", ") || "with no label" : right);

/** Calls `acts[key]` for keys that no field or button takes itself; a layout effect, so that a key means the text on the screen. */
function useKeys(acts) {
  useLayoutEffect(() => {
    const press = (event) => {
      const { key, target } = event;
      const modified = event.repeat || event.ctrlKey || event.metaKey || event.altKey;
      if (modified || !Object.hasOwn(acts, key) || target.closest(key === "Enter" ? "input, select, a, button, summary" : "input, select")) return;
      event.preventDefault();
      acts[key]();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}

export function Review({ name }) {
  const [by, setBy] = useState("margin");
  const [page, setPage] = useState(0);
  // Texts to label; `{item, right}` of labeled ones, the latest last; ids of skipped ones; whether the server has no others; how many it
  // had, and how many were labeled then.
  const [{ left, done, skipped, ended, compared, before }, change] = useState(NOTHING);
  const [refusal, setRefusal] = useState(null);
  const place = useRef();
  const acted = useRef(false);
  const busy = useRef(false);
  const where = path`/v1/tasks/${name}/review`;
  const { value: queue, error, again } = useLoaded(async (signal) => {
    const { value } = await ask("GET", `${where}?${new URLSearchParams({ by, limit: Math.min(MOST, PAGE + skipped.length) })}`, { signal });
    change((now) => {
      const known = new Set([...now.left, ...now.done.map((one) => one.item)].map(({ id }) => id).concat(now.skipped));
      const fresh = value.items.filter(({ id }) => !known.has(id));
      return { ...now, left: [...now.left, ...fresh], ended: !fresh.length, compared: value.compared, before: now.done.length };
    });
    return value;
  }, [name, by, page]);
  const item = left[0];
  const open = compared + before - done.length;
  useEffect(() => note({ method: "GET", path: `${where}?by=${by}`, python: `review(${py(name)}, by=${py(by)})` }), [name, by]);
  useEffect(() => {
    if (queue && !item && !ended) setPage((at) => at + 1);
    // Before the first action the focus stays at the title or the select.
    if (acted.current) place.current?.focus();
  }, [queue, item, ended]);
  const step = (text, next) => {
    acted.current = true;
    setRefusal(null);
    change((now) => ({ ...now, ...next(now) }));
    say(text);
  };
  const without = ({ left }) => left.filter(({ id }) => id !== item.id);
  const send = async (right) => {
    if (busy.current) return;
    busy.current = true;
    const data = [{ id: item.id, [Array.isArray(right) ? "labels" : "label"]: right, kind: "review" }];
    try {
      await ask("POST", "/v1/feedback", { body: { data } });
      note({ method: "POST", path: "/v1/feedback", body: { data }, python: `feedback(${JSON.stringify(data)})` });
      step(`Labeled ${worded(right)}, ${done.length + 1} done`, (now) => ({ left: without(now), done: [...now.done, { item, right }] }));
    } catch (failed) {
      setRefusal(failed);
    }
    busy.current = false;
  };
  // A text that undo brought back keeps its label.
  const skip = () => item && !busy.current && step(`Skipped, ${skipped.length + 1} in all`, (now) =>
    ({ left: without(now), ...(item.was === undefined ? { skipped: [...now.skipped, item.id] } : { done: [...now.done, { item, right: item.was }] }) }));
  const undo = () => {
    const last = done.at(-1);
    if (!last || busy.current) return;
    step(`Back to a text labeled ${worded(last.right)}`, (now) => ({ left: [{ ...last.item, was: last.right }, ...now.left], done: now.done.slice(0, -1) }));
  };
  const order = (event) => {
    acted.current = false;
    change((now) => ({ ...now, left: now.left.filter(({ was }) => was !== undefined), ended: false }));
    setBy(event.currentTarget.value);
  };
  useKeys({ s: skip, u: undo });
  const other = error?.problem?.code === "invalid-input" || (queue && !TYPES.includes(queue.task_type));
  const acts = html`
    <p class="buttons">
      ${item && html`<button type="button" aria-keyshortcuts="s" onClick=${skip}>Skip <kbd aria-hidden="true">s</kbd></button>`}
      <button type="button" aria-keyshortcuts="u" aria-disabled=${!done.length} onClick=${undo}>Undo <kbd aria-hidden="true">u</kbd></button>
    </p>`;
  return html`
    <p class="crumb"><a href="#/tasks">Tasks</a> / <a href=${link(["tasks", name])}>${name}</a></p>
    <h1 tabindex="-1" class="wrap">Review of ${name}</h1>
    <div class="pair">
      <label>Order <select value=${by} onChange=${order}>${Object.entries(ORDERS).map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select></label>
      <span class="quiet" id="done">${compared !== null && `${number(open)}${open >= COMPARED ? " or more" : ""} left, `}${number(done.length)} done${skipped.length > 0 && `, ${number(skipped.length)} skipped`}</span>
    </div>
    ${error && html`<${Refused} error=${error} again=${again} />`}
    ${other && html`<p>This view labels texts of single_label and multi_label tasks.
      ${queue?.task_type === "token" ? html`The words of these are labeled in another program: <code class="wrap">onebert review ${name} --out queue.json --tool label-studio</code>.` : html`Feedback on others goes to <code>POST /v1/feedback</code>.`}</p>`}
    ${!queue && !error && html`<${Waiting} />`}
    ${refusal && html`<${Refused} error=${refusal} />`}
    ${queue && !other && item && html`<${Choices} key=${item.id} item=${item} queue=${queue} place=${place} send=${send}>${acts}</${Choices}>`}
    ${queue && !other && !item && ended && html`
      <div class="stack">
        <p class="empty" tabindex="-1" ref=${place}>${done.length || skipped.length ? "No other text waits for a label." : "No kept text waits for a label."}
          ${skipped.length > 0 && " Skipped texts come again when you open this view anew."}
          ${!queue.compared && !done.length && html` Texts wait here once the task keeps answers: an admin sends
            <code class="wrap"> PUT ${path`/v1/tasks/${name}/samples`}</code> with a share, such as <code>{"share": 0.1}</code>.`}</p>
        ${acts}
      </div>`}`;
}

/** A text with its labels, then `children`, then the versions' answers. Labels are sent at once, in a multi_label task after the last choice. */
function Choices({ item, queue, place, send, children }) {
  const [first] = item.answers;
  const several = queue.task_type === "multi_label";
  const [chosen, setChosen] = useState(several ? (item.was ?? first.labels ?? []) : []);
  const choose = (label) => (several ? setChosen(chosen.includes(label) ? chosen.filter((one) => one !== label) : [...chosen, label]) : send(label));
  const accepted = several ? chosen : first.abstained ? undefined : first.label;
  const accept = () => (accepted === undefined ? say("The first version abstains") : send(accepted));
  useKeys({ Enter: accept, ...Object.fromEntries(queue.labels.slice(0, 9).map((label, at) => [at + 1, () => choose(label)])) });
  return html`
    <article class="card" id="text" tabindex="0" aria-label="Text to label" ref=${place}>
      <p dir="auto">${item.text}</p>
      ${item.text_pair && html`<p dir="auto">${item.text_pair}</p>`}
    </article>
    <div class="stack">
      ${item.was !== undefined && html`<p class="quiet">Labeled <b class="wrap">${worded(item.was)}</b>, until you choose again.</p>`}
      <div class="buttons labels" role="group" aria-label="Labels">${queue.labels.map((label, at) => html`
        <button type="button" aria-pressed=${several ? chosen.includes(label) : null} aria-keyshortcuts=${at < 9 ? at + 1 : null} onClick=${() => choose(label)}>
          ${at < 9 && html`<kbd aria-hidden="true">${at + 1}</kbd> `}<span class="wrap">${label}</span>${label === accepted && html` <kbd aria-hidden="true">Enter</kbd>`}</button>`)}</div>
      ${several && html`<p class="buttons"><button type="button" class="main" onClick=${accept}>Send <kbd aria-hidden="true">Enter</kbd></button></p>`}
      ${children}
    </div>
    <h2>Answers</h2>
    <div class="sides">${item.answers.map((one) => html`
      <section class="card" aria-label=${`Version ${one.version}`}><h3>Version ${one.version}</h3><${Answer} result=${{ ...one, tokens: undefined }} given=${item} /></section>`)}</div>`;
}
