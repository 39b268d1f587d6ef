// One task: its aliases, its versions, and the difference of two of them.

import { may, path } from "../api.js";
import { note, py } from "../calls.js";
import { oneTask } from "../data.js";
import { html, useEffect, useLoaded, useState } from "../lib.js";
import { many, Refused, Waiting } from "../parts.js";
import { link } from "../route.js";
import { Compare } from "./compare.js";
import { Move } from "./move.js";
import { Versions } from "./versions.js";

export function Task({ name, query }) {
  const { value: task, error, again } = useLoaded((signal) => oneTask(name, signal), [name]);
  const [move, setMove] = useState(null);
  useEffect(() => note({ method: "GET", path: path`/v1/tasks/${name}`, python: `task(${py(name)})` }), [name]);
  const body = task && html`
    <${Where} task=${task} move=${setMove} />
    <${Versions} task=${task} move=${setMove} />
    <${Compare} task=${task} query=${query} />`;
  return html`
    <p class="crumb"><a href="#/tasks">Tasks</a></p>
    <h1 tabindex="-1" class="wrap">${name}</h1>
    ${error && html`<${Refused} error=${error} again=${again} />`}
    ${!task && !error && html`<${Waiting} />`}
    ${body}
    ${move && html`<${Move} task=${task} ...${move} close=${() => setMove(null)} done=${again} />`}`;
}

/** The aliases' versions, with rollback. */
function Where({ task, move }) {
  const aliases = Object.entries(task.aliases);
  const promote = may("promote", task.name);
  return html`
    <div class="where">
      <p>${many(task.versions.length, "version")}.
        ${!("live" in task.aliases) && " No version is live: requests have to name one."}</p>
      <p class="buttons"><a class="button" href=${link(["try"], { task: task.name })}>Try it</a>
        ${may("review", task.name) && html`<a href=${link(["tasks", task.name, "review"])}>Review</a>`}
        ${may("upload", task.name) && html`<a href=${link(["upload"], { task: task.name })}>Upload a version</a>`}</p>
      <ul role="list" class="places" aria-label="Aliases">
        ${aliases.map(([alias, version]) => html`
          <li>
            <span class=${alias === "live" ? "tag live" : "tag"}>${alias}</span>
            <span>version ${version}${task.previous[alias] ? html`<span class="quiet">, before that ${task.previous[alias]}</span>` : ""}</span>
            ${promote && task.previous[alias] && html`
              <button type="button" class="slight" onClick=${() => move({ alias, version: task.previous[alias], back: true })}
                aria-label=${`Roll ${alias} back to version ${task.previous[alias]}`}>${task.previous[alias] > version ? "Undo the roll back" : "Roll back"}</button>`}
          </li>`)}
      </ul>
    </div>`;
}
