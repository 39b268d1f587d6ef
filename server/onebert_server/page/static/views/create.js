// Makes a task of examples, and tries it.

import { ask, path } from "../api.js";
import { note, py } from "../calls.js";
import { html, useState } from "../lib.js";
import { many, NAME, probability, Refused, say } from "../parts.js";
import { link } from "../route.js";
import { Answer } from "./answers.js";

const HINTS = [["complaint", "The parcel came broken."], ["praise", "The driver was very helpful."]];
const BLANK = { label: "", lines: "" };

export function Create() {
  const [task, setTask] = useState("");
  const [labels, setLabels] = useState([BLANK, BLANK]);
  const [several, setSeveral] = useState(false);
  const [state, setState] = useState({});
  const set = (at, changed) => setLabels(labels.map((one, place) => (place === at ? { ...one, ...changed } : one)));
  const single = labels.flatMap(({ label, lines }) => textsOf(lines).map((text) => ({ text, label: label.trim() })));
  const examples = several ? merged(single) : single;
  const create = async () => {
    if (state.busy) return;
    setState({ busy: true });
    const where = path`/v1/tasks/${task}/examples`;
    const body = { examples };
    try {
      const { value } = await ask("POST", where, { body });
      const rows = examples.map(({ text, label, labels }) => `(${py(text)}, ${labels ? `[${labels.map(py).join(", ")}]` : py(label)})`).join(", ");
      note({ method: "POST", path: where, body, python: `create_from_examples(${py(task)}, [${rows}])` });
      setState({ made: { ...value, examples } });
      say(`Version ${value.version} of ${task} is made`);
    } catch (error) {
      setState({ error });
    }
  };
  return html`
    <h1 tabindex="-1">From examples</h1>
    <p>Eight texts of each label make a classifier in seconds; from twenty on, its score means something.
      Take texts as people write them, unclear ones too. Texts that belong nowhere need a label of their own.</p>
    <form class="try stack" onSubmit=${(event) => { event.preventDefault(); create(); }}>
      <div>
        <label for="name">Task</label>
        <input id="name" ...${NAME} value=${task} onInput=${(event) => setTask(event.currentTarget.value)} />
      </div>
      <label class="check"><input id="several" type="checkbox" checked=${several} onChange=${(event) => setSeveral(event.currentTarget.checked)} />
        A text may have several labels: write it under each of them</label>
      <div class="two">${labels.map((one, at) => html`
        <div class="stack" key=${at}>
          <div><label for=${`label${at}`}>Label ${at + 1}</label>
            <input id=${`label${at}`} required maxlength="256" placeholder=${HINTS[at]?.[0]} value=${one.label} onInput=${(event) => set(at, { label: event.currentTarget.value })} /></div>
          <div><label for=${`lines${at}`}>Examples of label ${at + 1}, one a line</label>
            <textarea id=${`lines${at}`} rows="8" required placeholder=${HINTS[at]?.[1]} aria-describedby=${`count${at}`} value=${one.lines} onInput=${(event) => set(at, { lines: event.currentTarget.value })}></textarea>
            <p class="quiet small" id=${`count${at}`}>${many(textsOf(one.lines).length, "example")}</p></div>
        </div>`)}</div>
      <p class="buttons"><button class="main" aria-disabled=${state.busy}>${state.busy ? "One moment…" : "Create"}</button>
        <button type="button" onClick=${() => setLabels([...labels, BLANK])}>Add a label</button></p>
    </form>
    ${state.error && html`<${Refused} error=${state.error} />`}
    ${state.made && html`<${Made} made=${state.made} />`}`;
}

function textsOf(lines) {
  return lines.split("\n").map((line) => line.trim()).filter(Boolean);
}

/** Each text once, with all its labels. */
function merged(examples) {
  const labels = new Map();
  for (const { text, label } of examples) labels.set(text, [...new Set([...(labels.get(text) ?? []), label])]);
  return [...labels].map(([text, names]) => ({ text, labels: names }));
}

function Made({ made }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState({});
  const classify = async (event) => {
    event.preventDefault();
    try {
      const { value } = await ask("POST", path`/v1/tasks/${made.task}/classify`, { body: { inputs: text } });
      setFound({ version: value.version, result: value.results[0] });
      say(`Answer: ${value.results[0].label}`);
    } catch (error) {
      setFound({ error });
    }
  };
  return html`
    <section id="made" aria-labelledby="version">
      <h2 id="version" class="wrap">${made.task} <span class="quiet">version ${made.version}</span></h2>
      <div class="card stack">
        <p>${made.metric} ${probability(made.score)} in folds of ${many(made.examples.length, "example")}; ${made.live ? "live" : html`not live: <a href=${link(["tasks", made.task], { version: made.version })}>promote it</a>`}.</p>
        ${made.notes.map((line) => html`<p class="quiet small wrap">${line}.</p>`)}
        <form class="stack" onSubmit=${classify}>
          <div><label for="text">Try a text</label><input id="text" required value=${text} onInput=${(event) => setText(event.currentTarget.value)} /></div>
          <p class="buttons"><button>Classify</button></p>
        </form>
        ${found.error && html`<${Refused} error=${found.error} />`}
        ${found.result && html`<div id="answer"><p class="quiet">Version ${found.version}</p><${Answer} result=${found.result} given=${{ text }} /></div>`}
      </div>
    </section>`;
}
