// Moves an alias to a version after a confirmation: promotion and rollback.

import { ask, path } from "../api.js";
import { note, py } from "../calls.js";
import { html, useState } from "../lib.js";
import { Confirm, say } from "../parts.js";

/** Confirms and moves `alias` from its last seen version; the server refuses if it has moved since. */
export function Move({ task, alias: given = "live", version, back, close, done }) {
  const [alias, setAlias] = useState(given);
  const at = task.aliases[alias];
  const act = async () => {
    const where = path`/v1/tasks/${task.name}/aliases/${alias}`;
    const tag = task.targets?.[alias]?.tag ?? at;
    const headers = at === undefined ? { "If-None-Match": "*" } : { "If-Match": `"${tag}"` };
    await ask("PUT", where, { headers, body: { version } });
    note({
      method: "PUT", path: where, headers, body: { version },
      python: `move_alias(${py(task.name)}, ${py(alias)}, ${version}, expected=${task.targets?.[alias] ? py(tag) : at ?? "None"})`,
    });
    say(`${alias} of ${task.name} is version ${version} now`);
    done();
  };
  const from = at === undefined ? "is new." : back && version > at
    ? `goes from ${at} back to ${version}, which was rolled back.` : `is at version ${at} now.`;
  return html`
    <${Confirm} title=${back ? `Roll ${alias} back to version ${version}?` : `Promote version ${version}?`}
      verb=${back ? "Roll back" : "Promote"} act=${act} close=${close}>
      ${!back && html`
        <div class="stack">
          <label for="alias">Alias</label>
          <input id="alias" list="aliases" value=${alias} required pattern="[a-z0-9][a-z0-9._\\-]*" spellcheck=${false}
            autocomplete="off" onInput=${(event) => setAlias(event.currentTarget.value)} />
          <datalist id="aliases">${Object.keys(task.aliases).map((one) => html`<option value=${one} />`)}</datalist>
        </div>`}
      <p><b class="wrap">${alias}</b> of <b class="wrap">${task.name}</b> ${from}
        ${" "}From then on version <b>${version}</b> answers${alias === "live" ? html` every request for <code>${task.name}</code>` : html` <code>${task.name}@${alias}</code>`}.
        What is under way is still answered by the other one, and you can go back at any time.</p>
    </${Confirm}>`;
}
