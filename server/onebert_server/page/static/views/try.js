// Tries a text: with one task, with two versions side by side, or with every task.

import { ask, may, path } from "../api.js";
import { note, py, pyInput } from "../calls.js";
import { allTasks } from "../data.js";
import { html, useLoaded, useRef, useState } from "../lib.js";
import { many, Refused, say } from "../parts.js";
import { Answer, Took } from "./answers.js";
import { Everything } from "./everything.js";
import { Words } from "./words.js";

const OFFERED = 50;

export function Try({ query }) {
  const { value: tasks } = useLoaded(allTasks, []);
  const [form, setForm] = useState({ task: query.task ?? "", beside: query.beside ?? "", text: "", pair: "", all: false });
  const [state, setState] = useState({});
  const asked = useRef(0);
  const chosen = form.all || form.task.trim() !== "";
  const set = (changed) => setForm((before) => ({ ...before, ...changed }));
  const submit = async (event) => {
    event.preventDefault();
    if (!chosen) return;
    const turn = ++asked.current;
    setState((before) => ({ ...before, busy: true, error: null }));
    try {
      const found = await answered({ ...form, task: form.task.trim(), beside: form.beside.trim() });
      if (turn !== asked.current) return;
      setState({ found: { ...found, turn } });
      say(`Answered by ${many(found.results.length, "version")} in ${found.ms.toFixed(0)} milliseconds`);
    } catch (error) {
      if (turn === asked.current) setState({ error });
    }
  };
  const send = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.form.requestSubmit();
  };
  return html`
    <h1 tabindex="-1">Try</h1>
    <form class="try stack" onSubmit=${submit}>
      <div>
        <label for="text">Text</label>
        <textarea id="text" rows="4" required value=${form.text} onKeyDown=${send} onInput=${(event) => set({ text: event.currentTarget.value })}></textarea>
      </div>
      <details open=${form.pair !== ""}>
        <summary>Second text, for tasks on pairs and for questions</summary>
        <label class="unseen" for="pair">Second text</label>
        <textarea id="pair" rows="3" value=${form.pair} onKeyDown=${send} onInput=${(event) => set({ pair: event.currentTarget.value })}></textarea>
      </details>
      <fieldset class="choice">
        <legend class="unseen">Which tasks</legend>
        <label class="check"><input type="radio" name="which" checked=${!form.all} onChange=${() => set({ all: false })} /> One task</label>
        <label class="check"><input type="radio" name="which" checked=${form.all} onChange=${() => set({ all: true })} /> All tasks</label>
      </fieldset>
      ${!form.all && html`
        <div class="two">
          <${Reference} id="task" label="Task" value=${form.task} required tasks=${tasks} choose=${(task) => set({ task })} />
          <${Reference} id="beside" label="Beside it (optional)" value=${form.beside} tasks=${tasks} choose=${(beside) => set({ beside })} />
        </div>`}
      <p class="buttons"><button class="main" aria-disabled=${!chosen} aria-describedby=${chosen ? null : "choose"}>${state.busy ? "One moment…" : "Classify"}</button>
        ${!chosen && html`<span id="choose" class="quiet">Choose a task first.</span>`}
        ${!may("classify") && html`<span class="quiet">This key is not for classifying.</span>`}</p>
    </form>
    ${state.error && html`<${Refused} error=${state.error} />`}
    ${state.found && html`<${Found} found=${state.found} />`}`;
}

/** An input for a task reference: `name`, `name@3` or `name@alias`; suggests some matching names. */
function Reference({ id, label, value, required, tasks, choose }) {
  const [name] = value.split("@");
  const of = tasks?.find((task) => task.name === name);
  const names = (tasks ?? []).filter((task) => task.name.includes(name)).slice(0, OFFERED).map((task) => task.name);
  const offered = of ? [name, ...Object.keys(of.aliases).map((alias) => `${name}@${alias}`), ...of.versions.slice(-OFFERED).reverse().map((at) => `${name}@${at}`)] : names;
  return html`
    <div>
      <label for=${id}>${label}</label>
      <input id=${id} list=${`${id}s`} value=${value} required=${required} placeholder="name or name@2" spellcheck=${false} autocomplete="off" autocapitalize="none"
        onInput=${(event) => choose(event.currentTarget.value)} />
      <datalist id=${`${id}s`}>${offered.map((one) => html`<option value=${one} />`)}</datalist>
    </div>`;
}

/** Sends the question and stores the call. */
async function answered({ task, beside, text, pair, all }) {
  const input = pair ? { text, text_pair: pair } : { text };
  const given = { text, pair };
  if (all) {
    const body = { ...input, tasks: ["*"] };
    const { value, ms, headers } = await ask("POST", "/v1/fanout", { body });
    note({ method: "POST", path: "/v1/fanout", body, python: `fanout(${pyInput(text, pair)})` });
    return { all, results: value.results, ms, headers, given };
  }
  if (beside) {
    const body = { items: [task, beside].map((one) => ({ task: one, ...input })) };
    const { value, ms, headers } = await ask("POST", "/v1/classify", { body });
    const items = [task, beside].map((one) => `(${py(one)}, ${pyInput(text, pair)})`).join(", ");
    note({ method: "POST", path: "/v1/classify", body, python: `classify_items([${items}])` });
    return { results: value.results, ms, headers, given };
  }
  const where = path`/v1/tasks/${task}/classify`;
  const body = { inputs: pair ? input : text };
  const { value, ms, headers } = await ask("POST", where, { body });
  note({ method: "POST", path: where, body, python: `classify(${py(task)}, ${pyInput(text, pair)})` });
  const { results, ...from } = value;
  return { results: results.map((one) => ({ ...from, ...one })), ms, headers, given };
}

const Found = ({ found }) => html`
  <section aria-labelledby="answer">
    <h2 id="answer">Answer</h2>
    <${Took} ms=${found.ms} headers=${found.headers} />
    ${found.all
      ? html`<${Everything} results=${found.results} />`
      : html`<div class=${found.results.length > 1 ? "sides" : "side"}>
          ${found.results.map((result, at) => html`
            <article class="card" key=${`${at} ${result.digest}`} aria-labelledby=${`side${at}`}>
              <h3 id=${`side${at}`} class="wrap">${result.task} <span class="quiet">version ${result.version}</span></h3>
              <${Answer} result=${result} given=${found.given} beside=${found.results[1 - at]} />
              <${Words} key=${found.turn} result=${result} given=${found.given} />
            </article>`)}
        </div>`}
  </section>`;
