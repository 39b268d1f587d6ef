// Reads tasks and versions from the server, page by page.

import { ask, path } from "./api.js";
import { number } from "./parts.js";

/** Every task that the principal may see, by name. */
export const allTasks = (signal) => everyPage("/v1/tasks", signal);
/** What is in force for each of these. */
export const everyStatus = (signal) => everyPage("/v1/status", signal);

/** What is in force for one task, with how often the shadows of `live` agree. */
export async function statusOf(name, signal) {
  const { value } = await ask("GET", path`/v1/tasks/${name}/status`, { signal });
  return { ...value, shadows: value.live?.target?.shadow ? await shadowsOf(name, signal) : [] };
}

/** None if the server has no such extension. */
const shadowsOf = (name, signal) =>
  ask("GET", path`/v1/tasks/${name}/aliases/live/shadows`, { signal }).then(({ value }) => value.shadows, (error) => {
    if (error.problem?.status === 404) return [];
    throw error;
  });

async function everyPage(where, signal) {
  const tasks = [];
  for (let after = ""; after !== null; ) {
    const { value } = await ask("GET", `${where}?${new URLSearchParams({ after })}`, { signal });
    tasks.push(...value.tasks);
    after = value.next;
  }
  return tasks;
}

/** A task with its versions, newest first. */
export async function oneTask(name, signal) {
  let task = null;
  for (let after = 0; after !== null; ) {
    const { value } = await ask("GET", `${path`/v1/tasks/${name}`}?after=${after}`, { signal });
    task = { ...value, versions: [...(task?.versions ?? []), ...value.versions] };
    after = value.next;
  }
  task.versions.reverse();
  return task;
}

const manifests = new Map();

/** A version's manifest; cached, since a version never changes. */
export async function manifestOf(name, version, digest) {
  const known = `${name} ${digest}`;
  if (!manifests.has(known)) {
    const asked = ask("GET", path`/v1/tasks/${name}/versions/${version}`).then(({ value }) => value.manifest);
    manifests.set(known, asked);
    asked.catch(() => manifests.delete(known));
  }
  return manifests.get(known);
}

/** The training's metric on test or validation rows, or in folds: `{name, value, where}`; null if the manifest has none. */
export function measured(manifest) {
  const training = manifest?.training ?? {};
  for (const split of ["test", "validation"]) {
    const found = training[split];
    if (found === null || typeof found !== "object") continue;
    const name = typeof training.metric === "string" && training.metric in found ? training.metric : Object.keys(found)[0];
    if (typeof found[name] === "number") return { name, value: found[name], where: split === "validation" && training.folds ? `${training.folds} folds` : split };
  }
  return null;
}

const SPLITS = ["train", "validation", "test"];

/** The training's data: its name, or "", and its rows in words. */
export function learned(manifest) {
  const { name, rows } = manifest?.training?.data ?? {};
  const counts = SPLITS.flatMap((split) => (typeof rows?.[split] === "number" ? [`${number(rows[split])} ${split}`] : []));
  return [typeof name === "string" ? name : "", counts.join(", ")];
}

/**
 * Flattens nested values to `[name, text]`: `rows` in `data` becomes `data rows`; nulls are left out. Numbers that
 * decide stay exact: a threshold of 0.999998 lets answers through, a rounded one of 1 none.
 */
export function flat(value, exact = false, before = "") {
  return Object.entries(value ?? {}).flatMap(([key, item]) => {
    const name = `${before} ${key}`.trim().replaceAll("_", " ");
    if (item === null) return [];
    if (Array.isArray(item)) return [[name, item.map((one) => worded(one, exact)).join(", ")]];
    return typeof item === "object" ? flat(item, exact, name) : [[name, worded(item, exact)]];
  });
}

function worded(value, exact) {
  if (typeof value === "number" && !Number.isInteger(value) && !exact) return String(Number(value.toPrecision(5)));
  return typeof value === "string" ? value : JSON.stringify(value);
}
