// One text with every task.

import { html, useMemo, useState } from "../lib.js";
import { decimal, LongList, many, probability } from "../parts.js";
import { link } from "../route.js";
import { probable } from "./answers.js";

const ROW = 56;

// The order of answers: probabilities, highest first; then answers without a statement; then numbers of another kind, which do not compare
// with probabilities; then failures.
const [SURE, SILENT, OTHER, FAILED] = [0, 1, 2, 3];

/** An answer's row text, its sort rank, and its number if any. */
function brief({ error, abstained, label, labels, scores, words, entities, answers }) {
  if (error) return { said: error.title, place: FAILED };
  if (abstained) return { said: "abstained", place: SILENT };
  if (labels?.length === 0) return { said: "nothing flagged", place: SILENT };
  if (label !== undefined) {
    const named = labels ?? [label];
    return { said: named.join(", "), score: scores[named[0]], place: probable({ scores, labels }) ? SURE : OTHER };
  }
  if (answers) return answers.length ? { said: answers[0].text, score: answers[0].score, place: SURE } : { said: "no answer", place: SILENT };
  return { said: entities ? many(entities.length, "entity", "entities") : many(words.length, "word"), place: OTHER };
}

const before = (one, other) =>
  one.place - other.place || (one.place === SURE ? other.score - one.score : 0) || one.task.localeCompare(other.task);

export function Everything({ results }) {
  const [wanted, setWanted] = useState("");
  const rows = useMemo(() => {
    const found = results.map((one) => ({ key: one.task, task: one.task, version: one.version, ...brief(one) })).sort(before);
    return found.filter(({ task, said }) => `${task} ${said}`.toLowerCase().includes(wanted.toLowerCase()));
  }, [results, wanted]);
  return html`
    <div class="search">
      <label class="unseen" for="filter">Filter by task or label</label>
      <input id="filter" type="search" placeholder="Filter by task or label" autocomplete="off" value=${wanted} onInput=${(event) => setWanted(event.currentTarget.value)} />
      <p class="quiet" role="status">${many(rows.length, "task")}</p>
    </div>
    <${LongList} id="everything" rows=${rows} of=${rows} height=${ROW} label="Answers of all tasks" draw=${drawn} />`;
}

const LOOKS = { [SILENT]: "said quiet", [FAILED]: "said error" };

const drawn = ({ task, version, said, score, place }, { tabindex, ref, focus }) => html`
  <a class="row" href=${link(["tasks", task])} tabindex=${tabindex} ref=${ref} onFocus=${focus}>
    <span class="title">${task}<span class="quiet">@${version}</span></span>
    <span class=${LOOKS[place] ?? "said"}>${said}</span>
    <span class="count">${score === undefined ? "" : place === SURE ? probability(score) : decimal(score)}</span>
  </a>`;
