// Signing in with an API key.

import { session, signIn } from "../api.js";
import { html, useRef, useState } from "../lib.js";

export function SignIn() {
  const { said, state } = session.use();
  const field = useRef();
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    await signIn(field.current.value.trim());
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
    <p>This server asks for an API key. It stays in the memory of this page: to close the page or to load it again signs you out.</p>
    <form onSubmit=${submit} class="stack">
      <label for="key">API key</label>
      <input id="key" ref=${field} type="password" autocomplete="off" spellcheck=${false} required aria-describedby="refusal" />
      <p id="refusal" class="error" role="alert">${said}</p>
      <button class="main" aria-disabled=${busy}>Sign in</button>
    </form>
  </section>`;
}
