// Every task of the server, with a search field.

import { note } from "../calls.js";
import { allTasks } from "../data.js";
import { html, useEffect, useLoaded, useMemo, useState } from "../lib.js";
import { Aliases, LongList, many, Refused, Waiting } from "../parts.js";
import { link } from "../route.js";

const ROW = 60;

export function Tasks() {
  const { value: tasks, error, again } = useLoaded(allTasks, []);
  const [wanted, setWanted] = useState("");
  useEffect(() => note({ method: "GET", path: "/v1/tasks", python: "tasks()" }), []);
  const rows = useMemo(() => {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    return (tasks ?? [])
      .filter((task) => words.every((word) => task.name.includes(word)))
      .map((task) => ({ ...task, key: task.name }));
  }, [tasks, wanted]);
  const down = (event) => {
    if (event.key !== "ArrowDown") return;
    event.preventDefault();
    document.querySelector("#tasks a[tabindex='0']")?.focus();
  };
  return html`
    <h1 tabindex="-1">Tasks</h1>
    ${error && html`<${Refused} error=${error} again=${again} />`}
    ${!tasks && !error && html`<${Waiting} />`}
    ${tasks?.length === 0 && html`<${Nothing} />`}
    ${tasks?.length > 0 && html`
      <div class="search">
        <label class="unseen" for="search">Search tasks</label>
        <input id="search" type="search" placeholder="Search" autocomplete="off" spellcheck=${false} value=${wanted}
          onInput=${(event) => setWanted(event.currentTarget.value)} onKeyDown=${down} />
        <p class="quiet" role="status">${wanted ? `${many(rows.length, "task")} of ${many(tasks.length, "task")}` : many(tasks.length, "task")}</p>
      </div>
      <${LongList} id="tasks" rows=${rows} height=${ROW} label="Tasks" draw=${drawn} />`}`;
}

const drawn = (task, { tabindex, ref, focus }) => html`
  <a class="row" href=${link(["tasks", task.name])} tabindex=${tabindex} ref=${ref} onFocus=${focus}>
    <span class="title">${task.name}</span>
    <span class="tags"><${Aliases} aliases=${task.aliases} /></span>
    <span class="quiet count">${many(task.versions.length, "version")}</span>
  </a>`;

const Nothing = () => html`
  <div class="empty">
    <p>There are no tasks yet. Train one, and upload it:</p>
    <pre tabindex="0"><code>onebert train --task tone --data tone.csv --out tone.safetensors
onebert push tone.safetensors --task tone</code></pre>
  </div>`;
