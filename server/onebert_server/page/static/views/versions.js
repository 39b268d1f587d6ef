// The versions of a task, each with the scores and data in its manifest.

import { may } from "../api.js";
import { learned, manifestOf, measured } from "../data.js";
import { html, useEffect, useState } from "../lib.js";
import { bytes, date, fixed, many, number } from "../parts.js";
import { link } from "../route.js";

const AT_FIRST = 10;

export function Versions({ task, status, move }) {
  const [shown, setShown] = useState(AT_FIRST);
  const promote = may("promote", task.name);
  const left = task.versions.length - shown;
  return html`
    <section aria-labelledby="versions">
      <h2 id="versions">Versions</h2>
      <ul role="list" class="versions">
        ${task.versions.slice(0, shown).map((version) => html`<${Version} key=${version.version} task=${task} version=${version} roles=${rolesOf(version.version, status)} lacks=${status.lacks[version.version]} move=${promote && move} />`)}
      </ul>
      ${left > 0 && html`<button type="button" onClick=${() => setShown(shown + 50)}>Show older ones (${number(left)})</button>`}
    </section>`;
}

/** What the aliases have a version do: `live`, `live 10 %`, `shadow of live`. */
function rolesOf(version, { aliases }) {
  return aliases.flatMap(({ alias, version: at, target }) => {
    const split = target?.split ?? { [at]: 100 };
    const share = split[version];
    if (share) return [[alias, share === 100 ? alias : `${alias} ${share} %`]];
    return target?.shadow?.some((one) => one.version === version) ? [["", `shadow of ${alias}`]] : [];
  });
}

function Version({ task, version, roles, lacks, move }) {
  const [manifest, setManifest] = useState(null);
  useEffect(() => {
    // Without a readable manifest the version's status has the reason.
    manifestOf(task.name, version.version, version.digest).then(setManifest, () => setManifest(null));
  }, [version.digest]);
  const found = measured(manifest);
  const [data, rows] = learned(manifest);
  const facts = [
    [found ? `${found.name}, ${found.where}` : "Score", found ? fixed(found.value, 3) : "–"],
    ["Method", version.method ?? "–"],
    ["Data", data || "–", rows],
    ["Size", bytes(version.size)],
    ["Made", date(version.created_at)],
  ];
  return html`
    <li class="version" aria-labelledby=${`v${version.version}`}>
      <header>
        <h3 id=${`v${version.version}`}>Version ${version.version}</h3>
        <span class="tags">${roles.map(([alias, text]) => html`<span class=${alias === "live" ? "tag live" : "tag"}>${text}</span>`)}</span>
        ${version.status === "unavailable" && html`<span class="tag bad">unavailable</span>`}
        <span class="buttons">
          <a href=${link(["try"], { task: `${task.name}@${version.version}` })} aria-label=${`Try version ${version.version}`}>Try</a>
          ${move && !roles.some(([, text]) => text === "live") && html`<button type="button" class="slight" onClick=${() => move(version.version)} aria-label=${`Promote version ${version.version}`}>Promote</button>`}
        </span>
      </header>
      ${version.reason && html`<p class="error">${version.reason}</p>`}
      ${lacks && html`<p class="error">It does not keep ${lacks.join(", ")} of the version that it was trained like.</p>`}
      <dl>${facts.map(([name, value, more]) => html`
        <div><dt>${name}</dt><dd title=${more || null}>${value}${more && html`<span class="quiet more">${more}</span>`}</dd></div>`)}</dl>
      ${manifest && html`<${Labels} manifest=${manifest} />`}
    </li>`;
}

const MOST = 12;

const Labels = ({ manifest }) => html`
  <p class="quiet small">${manifest.task_type.replace("_", " ")}, ${many(manifest.labels.length, "label")}:${" "}
    ${manifest.labels.slice(0, MOST).join(", ")}${manifest.labels.length > MOST && ` and ${number(manifest.labels.length - MOST)} more`}</p>`;
