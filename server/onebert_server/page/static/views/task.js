// One task: what is in force, its versions, and the difference of two of them.

import { may, path } from "../api.js";
import { note, py } from "../calls.js";
import { oneTask, statusOf } from "../data.js";
import { html, useEffect, useLoaded, useRefreshed, useState } from "../lib.js";
import { fixed, Refused, Waiting } from "../parts.js";
import { link } from "../route.js";
import { Compare } from "./compare.js";
import { Move } from "./move.js";
import { Status } from "./status.js";
import { Versions } from "./versions.js";

const EVERY = 10_000;

export function Task({ name, query }) {
  const loaded = useLoaded((signal) => Promise.all([statusOf(name, signal), oneTask(name, signal)]), [name]);
  const { value, error, again } = loaded;
  const [status, task] = value ?? [];
  const [move, setMove] = useState(null);
  // The server's answer to the last change.
  const [moved, setMoved] = useState(null);
  useRefreshed(loaded, EVERY);
  useEffect(() => note({ method: "GET", path: path`/v1/tasks/${name}/status`, python: `status(${py(name)})` }), [name]);
  return html`
    <p class="crumb"><a href="#/tasks">Tasks</a></p>
    <h1 tabindex="-1" class="wrap">${name}</h1>
    ${error && html`<${Refused} error=${error} again=${again} />`}
    ${!task && !error && html`<${Waiting} />`}
    ${task && html`
      <p class="buttons"><a class="button" href=${link(["try"], { task: name })}>Try it</a>
        ${may("review", name) && html`<a href=${link(["tasks", name, "review"])}>Review</a>`}
        ${may("upload", name) && html`<a href=${link(["upload"], { task: name })}>Upload a version</a>`}</p>
      ${moved?.gate?.map((report) => html`<${Passed} report=${report} />`)}
      <${Status} status=${status} versions=${task.versions.length} change=${setMove} />
      <${Versions} task=${task} status=${status} move=${(version) => setMove({ kind: "promote", version })} />
      <${Compare} task=${task} query=${query} />`}
    ${move && html`<${Move} task=${task} status=${status} ...${move} close=${() => setMove(null)} done=${(place) => { setMoved(place); again(); }} />`}`;
}

const Passed = ({ report: { candidate, checks } }) => html`
  <p class="quiet" role="status">Version ${candidate.version} passed the gate: ${checks.map(({ name, value, bound }) => `${name} ${fixed(value, 3)} (bound ${bound})`).join(", ")}.</p>`;
