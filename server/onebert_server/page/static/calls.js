// Shows the last request as a call for curl and for Python.

import { address, lastCall, signedIn } from "./api.js";
import { html, useRef } from "./lib.js";
import { Copy } from "./parts.js";

/** Stores a call: `{method, path, headers, body, file, python}`; `python` is the text after `client.`. */
export const note = (call) => lastCall.set(call);

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
/** A string as a Python literal; Python reads JSON's escapes alike. */
export const py = (value) =>
  value === null || value === undefined ? "None" : Array.isArray(value) ? `[${value.map(py).join(", ")}]` : JSON.stringify(value);
/** An input for the Python client: a string, or a tuple of two. */
export const pyInput = (text, pair) => (pair ? `(${py(text)}, ${py(pair)})` : py(text));

export function curl({ method, path, headers = {}, body, file }) {
  const parts = ["curl"];
  if (file) parts.push(`-T ${quoted(file.startsWith("-") ? `./${file}` : file)}`);
  else if (method !== "GET" && !(method === "POST" && body)) parts.push(`-X ${method}`);
  if (signedIn()) parts.push(`-H "Authorization: Bearer $ONEBERT_API_KEY"`);
  for (const [name, value] of Object.entries(headers)) parts.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (body !== undefined) parts.push(`-H 'Content-Type: application/json'`, `--data-binary ${quoted(JSON.stringify(body))}`);
  parts.push(quoted(address(path)));
  return parts.join(" \\\n  ");
}

export function python({ python: call, imports = [] }) {
  const key = signedIn() ? ', api_key=os.environ["ONEBERT_API_KEY"]' : "";
  const lines = [...(signedIn() ? ["import os"] : []), ...imports];
  const server = address("/").replace(/\/$/, "");
  return [
    ...lines, ...(lines.length ? [""] : []), "import onebert", "",
    `with onebert.Client(${py(server)}${key}) as client:`, `    print(client.${call})`,
  ].join("\n");
}

/** The last call, with a button that copies it. */
export function Calls() {
  const call = lastCall.use();
  if (!call) return null;
  return html`
    <details class="calls">
      <summary>As an API call <code>${call.method} ${call.path}</code></summary>
      <div class="snippets">
        <${Snippet} name="curl" text=${curl(call)} />
        ${call.python && html`<${Snippet} name="Python" text=${python(call)} />`}
      </div>
      ${signedIn() && html`<p class="quiet">The key is not shown: put it into the variable <code>ONEBERT_API_KEY</code>.</p>`}
    </details>`;
}

function Snippet({ name, text }) {
  const place = useRef();
  return html`
    <section class="snippet" aria-label=${`The call with ${name}`}>
      <header><span class="small">${name}</span><${Copy} text=${text} what=${`the call with ${name}`} place=${place} /></header>
      <pre tabindex="0"><code ref=${place}>${text}</code></pre>
    </section>`;
}
