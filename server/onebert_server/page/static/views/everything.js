// One text as every task sees it.

import { html, useMemo, useState } from "../lib.js";
import { decimal, LongList, many } from "../parts.js";
import { link } from "../route.js";

const ROW = 52;

const best = ({ error, label, score, entities, answers }) => {
  if (error) return [error.title, null];
  if (label !== undefined) return [label, score];
  if (answers) return answers.length ? [answers[0].text, answers[0].score] : ["no answer", null];
  if (entities) return [many(entities.length, "entity", "entities"), null];
  return ["words", null];
};

export function Everything({ results }) {
  const [wanted, setWanted] = useState("");
  const rows = useMemo(() => {
    const found = results.map((one) => ({ key: one.task, task: one.task, version: one.version, best: best(one), failed: Boolean(one.error) }));
    found.sort((one, other) => (other.best[1] ?? -1) - (one.best[1] ?? -1) || one.task.localeCompare(other.task));
    return found.filter(({ task, best: [label] }) => `${task} ${label}`.toLowerCase().includes(wanted.toLowerCase()));
  }, [results, wanted]);
  return html`
    <div class="search">
      <label class="unseen" for="filter">Filter by task or label</label>
      <input id="filter" type="search" placeholder="Filter by task or label" autocomplete="off" value=${wanted} onInput=${(event) => setWanted(event.currentTarget.value)} />
      <p class="quiet" role="status">${many(rows.length, "task")}</p>
    </div>
    <${LongList} id="everything" rows=${rows} height=${ROW} label="Answers of all tasks" draw=${drawn} />`;
}

const drawn = ({ task, version, best: [label, score], failed }, { tabindex, ref, focus }) => html`
  <a class="row" href=${link(["tasks", task])} tabindex=${tabindex} ref=${ref} onFocus=${focus}>
    <span class="title">${task}<span class="quiet">@${version}</span></span>
    <span class=${failed ? "error" : ""}>${label}</span>
    <span class="count">${score === null ? "" : decimal(score)}</span>
  </a>`;
