// Signing in with an API key.

import { session, signIn } from "../api.js";
import { html, useRef, useState } from "../lib.js";

export function SignIn() {
  const { said, state } = session.use();
  const field = useRef();
  const keep = useRef();
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    await signIn(field.current.value.trim(), keep.current.checked);
    setBusy(false);
    field.current?.focus();
  };
  if (state === "down") {
    return html`<section class="narrow">
      <h1 tabindex="-1">No answer</h1>
      <p role="alert">${said}</p>
      <button class="main" onClick=${() => signIn()}>Try again</button>
    </section>`;
  }
  return html`<section class="narrow">
    <h1 tabindex="-1">Sign in</h1>
    <p>This server asks for an API key. It stays in the memory of this page: reloading signs you out, unless this tab keeps the key.</p>
    <form onSubmit=${submit} class="stack">
      <label for="key">API key</label>
      <input id="key" ref=${field} type="password" autocomplete="off" spellcheck=${false} required aria-describedby="refusal" />
      <label class="check"><input ref=${keep} type="checkbox" /> Stay signed in until this tab is closed</label>
      <p id="refusal" class="error" role="alert">${said}</p>
      <button class="main" aria-disabled=${busy}>Sign in</button>
    </form>
  </section>`;
}
