// Every task at one glance: first what needs attention, then what is asked most.

import { note } from "../calls.js";
import { wholeFleet } from "../data.js";
import { html, useEffect, useLoaded, useMemo, useState } from "../lib.js";
import { date, decimal, many, number, Refused, Waiting } from "../parts.js";
import { link } from "../route.js";

// Rows drawn at once; the filter finds the others.
const MOST = 1000;
const DAY = 86_400_000;

const unavailable = (task) => Object.keys(task.unavailable).length;
const urgency = (task) => (task.alarm ? 2 : 0) + (unavailable(task) ? 1 : 0);
const attention = (one, other) => urgency(other) - urgency(one) || (other.a_minute ?? 0) - (one.a_minute ?? 0);

export function Fleet() {
  const { value: tasks, error, again } = useLoaded(wholeFleet, []);
  const [wanted, setWanted] = useState("");
  useEffect(() => note({ method: "GET", path: "/v1/status", python: "status()" }), []);
  const sorted = useMemo(() => tasks?.toSorted(attention) ?? [], [tasks]);
  const rows = useMemo(() => {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    return sorted.filter((task) => words.every((word) => task.name.includes(word)));
  }, [sorted, wanted]);
  const bases = new Set(sorted.map((task) => task.base)).size > 1;
  const urgent = rows.filter(urgency).length;
  const found = wanted || rows.length > MOST ? `${number(Math.min(rows.length, MOST))} of ${many(sorted.length, "task")}` : many(sorted.length, "task");
  return html`
    <h1 tabindex="-1">Fleet</h1>
    ${error && html`<${Refused} error=${error} again=${again} />`}
    ${!tasks && !error && html`<${Waiting} />`}
    ${tasks && html`
      <div class="search">
        <label class="unseen" for="search">Filter by name</label>
        <input id="search" type="search" placeholder="Filter" autocomplete="off" spellcheck=${false} value=${wanted} onInput=${(event) => setWanted(event.currentTarget.value)} />
        <p class="quiet" role="status">${found}${urgent > 0 && `, ${number(urgent)} need attention`}</p>
        <button type="button" class="slight" onClick=${again}>Refresh</button>
      </div>
      <div class="scroll card fleet" role="region" aria-label="Tasks of the fleet" tabindex="0">
        <table>
          <thead><tr>
            <th scope="col">Task</th><th scope="col">Attention</th><th scope="col">Live</th><th scope="col" class="count">Requests a minute</th>
            <th scope="col" class="count">p95, ms</th><th scope="col">Largest shift</th><th scope="col">Gate</th><th scope="col" class="count">New feedback</th>${bases && html`<th scope="col">Base</th>`}
          </tr></thead>
          <tbody>${rows.slice(0, MOST).map((task) => html`<${Row} key=${task.name} task=${task} bases=${bases} />`)}</tbody>
        </table>
      </div>`}`;
}

const Row = ({ task, bases }) => html`
  <tr>
    <th scope="row"><a href=${link(["tasks", task.name])}>${task.name}</a></th>
    <td class="tags">
      ${task.alarm && html`<span class="tag bad" title=${`since ${date(task.alarm.since)}`}>${task.alarm.words}</span>`}
      ${unavailable(task) > 0 && html`<span class="tag bad" title=${Object.values(task.unavailable)[0]}>unavailable: ${Object.keys(task.unavailable).join(", ")}</span>`}
    </td>
    <td>${task.live ? html`${task.live.words} <span class="quiet">${age(task.created_at)}</span>` : "–"}</td>
    <td class="count">${task.a_minute === null ? "–" : decimal(task.a_minute)}</td>
    <td class="count">${task.p95 === null ? "–" : decimal(1000 * task.p95)}</td>
    <td>${task.shift ? html`${percent(task.shift.reference)} → ${percent(task.shift.live)} <span class="quiet">${task.shift.label}</span>` : "–"}</td>
    <td>${task.gate ? "yes" : "–"}</td>
    <td class="count">${task.feedback === null ? "–" : number(task.feedback)}</td>
    ${bases && html`<td>${task.base ?? "–"}</td>`}
  </tr>`;

const percent = (share) => `${Math.round(100 * share)}%`;
const age = (made) => {
  const days = Math.floor((Date.now() - new Date(made)) / DAY);
  return days < 1 ? "today" : many(days, "day");
};
