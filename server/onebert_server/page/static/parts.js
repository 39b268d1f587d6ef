// Small parts that all views use: announcements, refusals, confirmations, long lists.

import { cell, html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";

const said = cell("");
/** Announces a text to screen readers. */
export const say = (text) => said.set(text);
export const Said = () => html`<p class="unseen" role="status" id="said">${said.use()}</p>`;

export const number = new Intl.NumberFormat("en").format;
export const decimal = (value, digits = 3) =>
  !Number.isFinite(value) ? "–" : Math.abs(value) >= 1000 ? number(Math.round(value)) : String(Number(value.toPrecision(digits)));
export const probability = (value) => value.toFixed(3);
/** A number with as many decimals as the others of its column; null is a dash. */
export function fixed(value, digits = 1) {
  const least = 10 ** -digits;
  if (value === null) return "–";
  return value > 0 && value < least / 2 ? `<${least}` : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
export const percent = (share, digits = 1) => (share === null ? "–" : `${fixed(100 * share, digits)} %`);
/** How a label's share has moved away from the reference. */
export const moved = ({ label, reference, live }) => `${label} ${percent(reference, 0)} → ${percent(live, 0)}`;
const DATE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
export const date = (text) => DATE.format(new Date(text));
const UNITS = [["day", 86_400_000], ["hour", 3_600_000], ["minute", 60_000]];
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
/** How long ago: "3 hours ago". */
export function ago(text) {
  const passed = Date.now() - new Date(text);
  const [unit, size] = UNITS.find(([, size]) => passed >= size) ?? [];
  return unit ? RELATIVE.format(-Math.floor(passed / size), unit) : "just now";
}
export const bytes = (size) =>
  size < 1000 ? `${size} B` : size < 1e6 ? `${decimal(size / 1e3)} kB` : size < 1e9 ? `${decimal(size / 1e6)} MB` : `${decimal(size / 1e9)} GB`;
export const many = (count, one, more = `${one}s`) => `${number(count)} ${count === 1 ? one : more}`;

/** What an input for a task's name takes. */
export const NAME = { required: true, pattern: "[a-z0-9][a-z0-9._\\-]*", maxlength: 63, spellcheck: false, autocomplete: "off", autocapitalize: "none" };

/** A refusal in the server's words, with a retry button if `again` can help. */
export const Refused = ({ error, again }) => html`
  <div class="refused" role="alert">
    <strong>${error.problem?.title ?? "Something went wrong"}</strong>
    <p>${error.message}</p>
    ${error.reasons?.length > 0 && html`<ul>${error.reasons.map((one) => html`<li>${one}</li>`)}</ul>`}
    ${error.problem?.code && html`<p class="quiet"><code>${error.problem.code}</code></p>`}
    ${again && html`<p><button type="button" onClick=${again}>Try again</button></p>`}
  </div>`;

export const Waiting = ({ children }) => html`<p class="quiet waiting" role="status">${children ?? "Loading…"}</p>`;

/** A button that copies a text; without clipboard access it selects the text in `place`. */
export function Copy({ text, what, place }) {
  const [done, setDone] = useState("Copy");
  useEffect(() => setDone("Copy"), [text]);
  const copy = async () => {
    try {
      // Browsers offer the clipboard only to pages from this machine or over TLS.
      await navigator.clipboard.writeText(text);
      setDone("Copied");
      say(`Copied ${what}`);
    } catch {
      getSelection().selectAllChildren(place.current);
      setDone("Selected");
      say(`The browser did not let this page copy; ${what} is selected`);
    }
  };
  return html`<button type="button" class="slight" onClick=${copy} aria-label=${`${done} ${what}`}>${done}</button>`;
}

/** Asks for confirmation before `act`; a refusal appears here and keeps the dialog open. */
export function Confirm({ title, children, verb, act, close }) {
  const dialog = useRef();
  const [state, setState] = useState({});
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    setState({ busy: true });
    try {
      await act();
      // Like a cancel: the browser returns the focus.
      dialog.current?.close();
    } catch (error) {
      setState({ error });
    }
  };
  return html`
    <dialog ref=${dialog} aria-labelledby="asked" onClose=${close}>
      <form onSubmit=${submit}>
        <h2 id="asked">${title}</h2>
        ${children}
        ${state.error && html`<${Refused} error=${state.error} />`}
        <div class="buttons">
          <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
          <button class="main" aria-disabled=${state.busy}>${state.busy ? "One moment…" : verb}</button>
        </div>
      </form>
    </dialog>`;
}

const BEYOND = 6;

/**
 * A list of any length that draws only its visible rows. Arrows, Page Up and Down, Home and End move inside it, and the
 * tab key enters and leaves it. It starts at its top when `of` changes, and stays where it is when only `rows` do.
 * `draw(row, {tabindex, ref})` returns an item's content and puts both on its link or button.
 */
export function LongList({ rows, of, height, label, draw, id }) {
  const box = useRef();
  const focused = useRef();
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(600);
  const [key, setKey] = useState(null);
  const [moved, setMoved] = useState(0);
  const active = Math.max(0, rows.findIndex((row) => row.key === key));
  useEffect(() => {
    setKey(null);
    setTop(0);
    if (box.current) box.current.scrollTop = 0;
  }, [of]);
  useLayoutEffect(() => {
    const place = box.current;
    const watch = new ResizeObserver(() => setRoom(place.clientHeight));
    watch.observe(place);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (moved) focused.current?.focus({ preventScroll: true });
  }, [moved]);
  const move = (event) => {
    const page = Math.max(1, Math.floor(room / height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    if (!(event.key in steps) || !rows.length) return;
    event.preventDefault();
    const next = Math.min(rows.length - 1, Math.max(0, active + steps[event.key]));
    const at = box.current.scrollTop;
    box.current.scrollTop = Math.min(next * height, Math.max(at, (next + 1) * height - room));
    setTop(box.current.scrollTop);
    setKey(rows[next].key);
    setMoved((count) => count + 1);
  };
  const first = Math.max(0, Math.floor(top / height) - BEYOND);
  const last = Math.min(rows.length, Math.ceil((top + room) / height) + BEYOND);
  const seen = Array.from({ length: Math.max(0, last - first) }, (_, at) => first + at);
  // Always draw the row with the tab stop, wherever the wheel has scrolled.
  if (active < rows.length && (active < first || active >= last)) seen.push(active);
  return html`
    <div class="long" ref=${box} id=${id} onScroll=${(event) => setTop(event.currentTarget.scrollTop)} onKeyDown=${move}>
      <ul role="list" aria-label=${label} style=${{ height: `${rows.length * height}px` }}>
        ${seen.map((at) => html`
          <li key=${rows[at].key} aria-setsize=${rows.length} aria-posinset=${at + 1} style=${{ height: `${height}px`, transform: `translateY(${at * height}px)` }}>
            ${draw(rows[at], { tabindex: at === active ? 0 : -1, ref: at === active ? focused : null, focus: () => setKey(rows[at].key) })}
          </li>`)}
      </ul>
    </div>`;
}
