// Every task with what is in force: searched, sorted, and read again while it is seen.

import { note } from "../calls.js";
import { everyStatus } from "../data.js";
import { html, useEffect, useLoaded, useMedia, useMemo, useRef, useRefreshed, useState } from "../lib.js";
import { ago, date, fixed, LongList, many, moved, number, percent, Refused, Waiting } from "../parts.js";
import { link } from "../route.js";

// Heights of a row, and of a card on a narrow screen.
const ROW = 36, CARD = 168;
const EVERY = 10_000;

const unavailable = (task) => Object.keys(task.unavailable);
/** Candidates that are proven worse. */
const worse = (task) => (task.candidates ?? []).filter(({ verdict }) => verdict === "roll_back").map(({ version }) => version);
const urgency = (task) => (task.alarm || worse(task).length ? 2 : 0) + (unavailable(task).length || Object.keys(task.lacks).length ? 1 : 0);
const most = (value) => (one, other) => (value(other) ?? -1) - (value(one) ?? -1);
/** When `live` got its present meaning, where that was the last move. */
const since = (task) => task.last_move?.alias === "live" ? task.last_move.at : null;
const latest = (value) => most((task) => value(task) && new Date(value(task)));

// Column -> its title and its order; the tasks come by name.
const COLUMNS = {
  name: ["Task", () => 0],
  attention: ["Attention", (one, other) => urgency(other) - urgency(one) || most((task) => task.a_minute)(one, other)],
  live: ["Live", latest((task) => since(task))],
  score: ["Score", most((task) => task.score?.value)],
  requests: ["Requests a minute", most((task) => task.a_minute)],
  abstained: ["Abstained", most((task) => task.abstained)],
  feedback: ["Feedback", most((task) => task.feedback)],
  moved: ["Last move", latest((task) => task.last_move?.at)],
};

export function Tasks() {
  const loaded = useLoaded(everyStatus, []);
  const { value: tasks, error, again } = loaded;
  const [wanted, setWanted] = useState("");
  const [by, setBy] = useState("attention");
  const [turn, setTurn] = useState(0);
  // Whether the user has asked for new figures, which may change the order.
  const asked = useRef(false);
  const narrow = useMedia("(max-width: 40rem)");
  // Thousands of tasks are read less often.
  useRefreshed(loaded, Math.max(EVERY, 10 * (tasks?.length ?? 0)));
  useEffect(() => note({ method: "GET", path: "/v1/status", python: "status()" }), []);
  // New figures alone move no row away from under the pointer.
  const urgent = (tasks ?? []).map((task) => `${task.name} ${urgency(task)}`).join();
  const sorted = useMemo(() => (tasks ?? []).toSorted(COLUMNS[by][1]).map(({ name }) => name), [urgent, by, turn]);
  const rows = useMemo(() => {
    const known = new Map(tasks?.map((task) => [task.name, task]));
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    const bases = new Set(tasks?.map(({ base }) => base).filter(Boolean)).size > 1;
    return sorted.filter((name) => known.has(name) && words.every((word) => name.includes(word))).map((name) => ({ ...known.get(name), key: name, bases }));
  }, [tasks, sorted, wanted]);
  const refresh = () => {
    asked.current = true;
    again();
  };
  useEffect(() => {
    if (asked.current) setTurn(turn + 1);
    asked.current = false;
  }, [tasks]);
  const down = (event) => {
    if (event.key !== "ArrowDown") return;
    event.preventDefault();
    document.querySelector("#tasks a[tabindex='0']")?.focus();
  };
  const attention = rows.filter(urgency).length;
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
        <p class="quiet" role="status">${wanted && `${number(rows.length)} of `}${many(tasks.length, "task")}${attention > 0 && html`, <b>${number(attention)} ${attention === 1 ? "needs" : "need"} attention</b>`}</p>
        <button type="button" class="slight" onClick=${refresh}>Refresh</button>
      </div>
      <div class="columns" role="group" aria-label="Sort by">${Object.entries(COLUMNS).map(([key, [title]]) => html`
        <button type="button" aria-pressed=${key === by} onClick=${() => setBy(key)}>${title}</button>`)}</div>
      <${LongList} id="tasks" rows=${rows} of=${`${wanted} ${by}`} height=${narrow ? CARD : ROW} label="Tasks" draw=${drawn} />`}`;
}

const drawn = (task, { tabindex, ref, focus }) => html`
  <a class="row task" href=${link(["tasks", task.name])} tabindex=${tabindex} ref=${ref} onFocus=${focus}>
    <${Cell} of="name" more=${[task.bases && task.base, task.gate && "gate", task.kept && `keeps ${percent(task.kept.share, 0)}`].filter(Boolean).join(", ")}><span class="title">${task.name}</span></${Cell}>
    <${Cell} of="attention" more=${task.alarm?.shift && moved(task.alarm.shift)}>
      ${task.alarm && html`<span class="tag bad" title=${`since ${date(task.alarm.since)}`}>${task.alarm.words}</span>`}
      ${worse(task).map((version) => html`<span class="tag bad">version ${version} is worse</span>`)}
      ${unavailable(task).length > 0 && html`<span class="tag bad" title=${Object.values(task.unavailable)[0]}>unavailable: ${unavailable(task).join(", ")}</span>`}
      ${Object.entries(task.lacks).map(([version, targets]) => html`<span class="tag bad" title=${targets.join(", ")}>version ${version} lacks ${many(targets.length, "target")}</span>`)}
    </${Cell}>
    <${Cell} of="live" more=${task.live && since(task) && `since ${ago(since(task)).replace(" ago", "")}`}>${task.live ? html`<b title=${task.live.words}>${task.live.words}</b>` : html`<span class="quiet">no live version</span>`}</${Cell}>
    <${Cell} of="score" unit=${task.score ? "" : "score"} more=${task.score && `${task.score.metric}, ${task.score.where}`}>${fixed(task.score?.value ?? null, 3)}</${Cell}>
    <${Cell} of="requests" unit="a minute" more=${task.p95 !== null && `p95 ${fixed(1000 * task.p95, 0)} ms`}>${fixed(task.a_minute)}</${Cell}>
    <${Cell} of="abstained" unit="abstained" more=${task.cut !== null && `${percent(task.cut)} cut`}>${percent(task.abstained)}</${Cell}>
    <${Cell} of="feedback" unit="waiting">${task.feedback === null ? "–" : number(task.feedback)}</${Cell}>
    <${Cell} of="moved" more=${task.last_move && `${task.last_move.who}, ${ago(task.last_move.at)}`}>${task.last_move?.what}</${Cell}>
  </a>`;

/** A value with what belongs to it; its unit is seen on a card, which has no titles of columns. */
const Cell = ({ of, unit, more, children }) => html`
  <span class=${`cell ${of}`}><span>${children}${unit && html` <span class="unit">${unit}</span>`}</span>${more && html` <span class="quiet" title=${more}>${more}</span>`}</span>`;

const Nothing = () => html`
  <div class="empty">
    <p>There are no tasks yet. Train one, and upload it:</p>
    <pre tabindex="0"><code>onebert train --task tone --data tone.csv --out tone.safetensors
onebert push tone.safetensors --task tone</code></pre>
  </div>`;
