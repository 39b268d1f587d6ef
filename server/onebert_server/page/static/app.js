// The page: the session, the current view, and the frame around it.

import { keptKey, lastCall, may, session, signIn, signOut, signedIn } from "./api.js";
import { Calls } from "./calls.js";
import { html, render, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { Said, Waiting } from "./parts.js";
import { here } from "./route.js";
import { Create } from "./views/create.js";
import { SignIn } from "./views/signin.js";
import { Load } from "./views/load.js";
import { Review } from "./views/review.js";
import { Task } from "./views/task.js";
import { Tasks } from "./views/tasks.js";
import { Try } from "./views/try.js";
import { Upload } from "./views/upload.js";

// The first part of the address -> name, view, and whether the principal may see it.
const VIEWS = {
  tasks: { name: "Tasks", view: ({ parts, query }) => (parts[1] ? oneTask(parts[1], parts[2], query) : html`<${Tasks} />`) },
  try: { name: "Try", view: ({ query }) => html`<${Try} query=${query} />` },
  upload: { name: "Upload", view: ({ query }) => html`<${Upload} query=${query} />`, offered: () => may("upload") },
  create: { name: "From examples", view: () => html`<${Create} />`, offered: () => may("upload") },
  load: { name: "Load", view: () => html`<${Load} />`, offered: () => session.get().who.tasks.includes("*") },
};

const oneTask = (name, view, query) => view === "review" ? html`<${Review} name=${name} key=${name} />` : html`<${Task} name=${name} query=${query} key=${name} />`;

/** The view of an address; "" for an address without one. */
function viewOf([first = "tasks", ...rest]) {
  const known = Object.hasOwn(VIEWS, first) && (first === "tasks" ? rest.length < 2 || (rest.length === 2 && rest[1] === "review") : !rest.length);
  return known ? first : "";
}

const Unknown = ({ parts }) => html`
  <h1 tabindex="-1">Not found</h1>
  <p>This page has no view at <code class="wrap">#/${parts.join("/")}</code>. <a href="#/tasks">See the tasks</a></p>`;

const titles = ({ parts, at }) => `${parts[1] ?? (VIEWS[at]?.name ?? "Not found")} · OneBERT`;

function Page() {
  const { state } = session.use();
  const route = here.use();
  const main = useRef();
  const shown = `${state}/${route.parts.join("/")}`;
  const [before, setBefore] = useState(shown);
  const at = viewOf(route.parts);
  // A layout effect: the new view stores its own call afterwards.
  useLayoutEffect(() => lastCall.set(null), [shown]);
  useEffect(() => {
    document.title = state === "in" ? titles({ ...route, at }) : "OneBERT";
    // Screen readers and keyboard users start at the new content.
    if (before !== shown && !before.startsWith("asking")) main.current.querySelector("h1")?.focus();
    setBefore(shown);
  }, [shown]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.querySelector("h1")?.focus(); }}>To the content</a>
    <${Head} at=${at} />
    <main id="main" ref=${main}>
      ${state === "asking" && html`<h1 tabindex="-1" class="unseen">OneBERT</h1><${Waiting} />`}
      ${(state === "out" || state === "down") && html`<${SignIn} />`}
      ${state === "in" && (at ? VIEWS[at].view(route) : html`<${Unknown} parts=${route.parts} />`)}
    </main>
    ${state === "in" && html`<${Calls} />`}
    <${Said} />`;
}

const Head = ({ at }) => {
  const { who, state } = session.use();
  const inside = state === "in";
  return html`
    <header class="head">
      <a class="name" href="#/tasks"><img src="page/icon.svg" alt="" width="24" height="24" /> OneBERT</a>
      <nav aria-label="Views">
        ${inside && Object.entries(VIEWS).filter(([, { offered }]) => !offered || offered()).map(([key, { name }]) => html`<a href=${`#/${key}`} aria-current=${key === at ? "page" : null}>${name}</a>`)}
        <a href="docs">HTTP</a>
      </nav>
      ${inside && signedIn() && html`
        <div class="who"><span class="small">${who.principal.replace(/^key:/, "")}</span>
          <button type="button" class="slight" onClick=${() => signOut()}>Sign out</button></div>`}
    </header>`;
};

render(html`<${Page} />`, document.getElementById("page"));
signIn(keptKey());
