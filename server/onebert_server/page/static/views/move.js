// Changes what an alias means, after a dialog that says what ends: promote, split, shadow, roll back.

import { ask, path } from "../api.js";
import { note, py } from "../calls.js";
import { html, useState } from "../lib.js";
import { Confirm, many, say } from "../parts.js";

const rest = (target) => ({ sticky: target?.sticky ?? undefined, shadow: target?.shadow ?? undefined });
const except = (shadow, version) => shadow?.filter((one) => one.version !== version);

const ALONE = { body: (_, { version }) => ({ version }), ends: () => true };

// Kind -> its title and verb, what it asks for, the new meaning, and those of the alias's `ends` that it ends.
const KINDS = {
  promote: {
    title: ({ version }) => `Promote version ${version}?`, verb: "Promote", fields: ["alias"], ...ALONE,
    then: ({ version, name, task }) => html`From then on version <b>${version}</b> answers${name === "live" ? html` every request for <code>${task}</code>` : html` <code>${task}@${name}</code>`}.`,
  },
  back: {
    title: ({ name }) => `Roll ${name} back?`, verb: "Roll back", fields: [],
    body: ({ previous: version, previous_target: target }) => (target ? { split: target.split, ...rest(target) } : { version }),
    ends: (one, _, { previous_target: target }) =>
      (one.startsWith("split") ? Object.keys(target?.split ?? {}).length < 2 : !target?.shadow?.some(({ version }) => one === `shadow ${version}`)),
    then: (_, { previous_words }) => html`From then on it is <b class="wrap">${previous_words}</b> again.`,
  },
  split: {
    title: ({ name }) => `Split ${name}`, verb: "Split", fields: ["version", "percent", "sticky"],
    body: (alias, { version, percent, sticky }) =>
      ({ split: { [alias.version]: 100 - percent, [version]: percent }, sticky: sticky || undefined, shadow: except(alias.target?.shadow, version) }),
    ends: (one, { version }) => one.startsWith("split") || one === `shadow ${version}`,
    then: ({ version, percent }, alias) => html`From then on version <b>${version}</b> answers ${percent} % of the requests, and version <b>${alias.version}</b> the others.`,
  },
  shadow: {
    title: ({ name }) => `Add a shadow to ${name}`, verb: "Add", fields: ["version", "percent"],
    body: ({ target, version: at }, { version, percent }) =>
      ({ split: target?.split ?? { [at]: 100 }, ...rest(target), shadow: [...(except(target?.shadow, version) ?? []), { version, percent }] }),
    ends: () => false,
    then: ({ version, percent }) => html`Version <b>${version}</b> then computes ${percent} % of the requests, too; no caller gets its answers.`,
  },
  unshadow: {
    title: ({ version }) => `End shadow ${version}?`, verb: "End", fields: [],
    body: ({ target }, { version }) => ({ split: target.split, ...rest(target), shadow: except(target.shadow, version) }),
    ends: (one, { version }) => one === `shadow ${version}`,
    then: () => html`What was counted of it stays.`,
  },
};

/** Confirms and makes a change to an alias as it was last seen; the server refuses if it has moved since. */
export function Move({ task, status, kind, alias: given, version: wanted, close, done }) {
  const { title, verb, fields, body, ends, then } = KINDS[kind];
  const versions = task.versions.map((one) => one.version);
  // A split's share may change; a shadow is of a version that does not answer.
  const candidates = versions.filter((at) => at !== given?.version && (kind === "split" || !(at in (given?.target?.split ?? {}))));
  const [form, setForm] = useState({ name: given?.alias ?? "live", percent: kind === "shadow" ? 100 : 10, sticky: given?.target?.sticky ?? "", version: wanted ?? candidates[0], why: "" });
  const set = (changed) => setForm((before) => ({ ...before, ...changed }));
  const alias = status.aliases.find((one) => one.alias === form.name);
  const meaning = { ...body(alias, form), message: form.why.trim() || undefined };
  const answering = meaning.split ? Object.keys(meaning.split).map(Number) : [meaning.version];
  const gated = !answering.every((version) => alias?.ungated.includes(version));
  const ended = alias?.ends.filter((one) => ends(one, form, alias)) ?? [];
  const act = async () => {
    const where = path`/v1/tasks/${task.name}/aliases/${form.name}`;
    const tag = alias && (alias.target?.tag ?? String(alias.version));
    const headers = alias ? { "If-Match": `"${tag}"` } : { "If-None-Match": "*" };
    const { value } = await ask("PUT", where, { headers, body: meaning });
    const python = meaning.version && `move_alias(${py(task.name)}, ${py(form.name)}, ${meaning.version}, expected=${alias?.target ? py(tag) : tag ?? "None"}${meaning.message ? `, message=${py(meaning.message)}` : ""})`;
    note({ method: "PUT", path: where, headers, body: meaning, python });
    say(`${form.name} of ${task.name}: ${value.what ?? "moved"}`);
    done(value);
  };
  return html`
    <${Confirm} title=${title({ ...form, task: task.name })} verb=${verb} act=${act} close=${close}>
      ${fields.length > 0 && html`<div class="stack">
        ${fields.includes("alias") && html`<${Field} id="alias" label="Alias" value=${form.name} required list=${status.aliases.map((one) => one.alias)} pattern="[a-z0-9][a-z0-9._\\-]*" set=${(name) => set({ name })} />`}
        ${fields.includes("version") && html`<div><label for="candidate">Version</label> <select id="candidate" value=${form.version} onChange=${(event) => set({ version: Number(event.currentTarget.value) })}>
          ${candidates.map((at) => html`<option value=${at} selected=${at === form.version}>${at}</option>`)}</select></div>`}
        ${fields.includes("percent") && html`<${Field} id="percent" label="Percent of the requests" type="number" min="1" max=${kind === "split" ? 99 : 100} value=${form.percent} required set=${(percent) => set({ percent: Number(percent) })} />`}
        ${fields.includes("sticky") && html`<${Field} id="sticky" label="One version per caller, by (optional)" placeholder="principal or header:X-User" list=${["principal"]} value=${form.sticky} set=${(sticky) => set({ sticky })} />`}
      </div>`}
      <div class="stack"><${Field} id="why" label="Why (optional)" maxlength="256" value=${form.why} set=${(why) => set({ why })} /></div>
      <p><b class="wrap">${form.name}</b> of <b class="wrap">${task.name}</b> ${alias ? html`is <b class="wrap">${alias.words}</b> now.` : "is new."} ${then({ ...form, task: task.name }, alias)}</p>
      ${ended.length > 0 && html`<p class="ends">This ends <b>${ended.join(" and ")}</b>.</p>`}
      ${status.gate?.aliases.includes(form.name) && gated && html`<p>The gate checks it first: ${many(status.gate.checks, "check")} on ${many(status.gate.rows, "pinned row")}.</p>`}
    </${Confirm}>`;
}

const Field = ({ id, label, list, set, ...input }) => html`
  <div><label for=${id}>${label}</label>
    <input id=${id} list=${list && `${id}s`} spellcheck=${false} autocomplete="off" onInput=${(event) => set(event.currentTarget.value)} ...${input} />
    ${list && html`<datalist id=${`${id}s`}>${list.map((one) => html`<option value=${one} />`)}</datalist>`}</div>`;
