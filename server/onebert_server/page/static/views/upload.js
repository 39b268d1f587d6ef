// Uploads a delta file, dropped or chosen, with progress and the server's reply.

import { may, path, upload } from "../api.js";
import { note, py } from "../calls.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { bytes, NAME, Refused, say } from "../parts.js";
import { link } from "../route.js";

/** A valid task name made from a file's name. */
const named = (file) => file.name.replace(/\.[^.]*$/, "").toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+/, "").slice(0, 63);

export function Upload({ query }) {
  const [file, setFile] = useState(null);
  const [task, setTask] = useState(query.task ?? "");
  const [over, setOver] = useState(false);
  const [state, setState] = useState({});
  const field = useRef();
  const busy = state.sent !== undefined;
  // The browser would open a file that is dropped outside of the drop zone, and the page with its key would be gone.
  useEffect(() => {
    const stay = (event) => event.preventDefault();
    for (const name of ["dragover", "drop"]) addEventListener(name, stay);
    return () => ["dragover", "drop"].forEach((name) => removeEventListener(name, stay));
  }, []);
  const choose = (chosen) => {
    if (!chosen || busy) return;
    setFile(chosen);
    setState({});
    if (!task) setTask(named(chosen));
    say(`Chosen: ${chosen.name}`);
  };
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    choose(event.dataTransfer.files[0]);
  };
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    if (!file) {
      field.current.focus();
      return;
    }
    const where = path`/v1/tasks/${task}/versions`;
    setState({ sent: 0 });
    try {
      const { value, status } = await upload(where, file, (sent) => setState({ sent }));
      note({ method: "PUT", path: where, headers: { "Content-Type": "application/octet-stream" }, file: file.name, imports: ["import pathlib"],
        python: `push(${py(task)}, pathlib.Path(${py(file.name)}))` });
      setState({ done: value, isNew: status === 201 });
      say(`Version ${value.version} of ${value.task} holds the file`);
    } catch (error) {
      setState({ error });
    }
  };
  return html`
    <h1 tabindex="-1">Upload</h1>
    <form class="stack" onSubmit=${submit}>
      <div class=${over ? "drop over" : "drop"} onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
        <label for="file">Delta file</label>
        <input id="file" ref=${field} type="file" accept=".safetensors" onChange=${(event) => choose(event.currentTarget.files[0])} />
        <p class="quiet wrap">${file ? `${file.name}, ${bytes(file.size)}` : html`Drop a file here, or choose one. <code>onebert train</code> writes them.`}</p>
      </div>
      <div>
        <label for="into">Task</label>
        <input id="into" ...${NAME} value=${task} aria-describedby="rule" onInput=${(event) => setTask(event.currentTarget.value)} />
        <p id="rule" class="quiet small">Lower-case letters, digits, dots, dashes and underscores. A task that is new begins with this version.</p>
      </div>
      <p class="buttons"><button class="main" aria-disabled=${busy}>Upload</button>
        ${!may("upload", task || undefined) && html`<span class="quiet">Your key is not for uploading this task.</span>`}</p>
    </form>
    ${busy && html`<${Sent} sent=${state.sent} size=${file.size} />`}
    ${state.error && html`<${Refused} error=${state.error} />`}
    ${state.done && html`<${Done} ...${state} />`}`;
}

const Sent = ({ sent, size }) => html`
  <div class="stack sent">
    <label for="sent">${sent < size ? `Sent ${bytes(sent)} of ${bytes(size)}` : "Sent; the server checks, proves and stores it"}</label>
    <progress id="sent" max=${size} value=${sent}></progress>
  </div>`;

const Done = ({ done, isNew }) => html`
  <div class="card" id="stored">
    <p><b class="wrap">${done.task}</b> ${isNew ? "has" : "had this file already, as"} version <b>${done.version}</b>${isNew ? " now" : ""}.</p>
    <p class="buttons"><a class="button" href=${link(["tasks", done.task], { version: done.version })}>See it${isNew && done.version > 1 ? ", and promote it" : ""}</a>
      <a href=${link(["try"], { task: `${done.task}@${done.version}` })}>Try it</a></p>
  </div>`;
