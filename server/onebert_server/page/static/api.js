// The server's HTTP API: requests, refusals, and the key, which only this module holds.

import { cell } from "./lib.js";

/** The session: `{state: "asking" | "in" | "out", who, said}`; `said` is why a key was refused. */
export const session = cell({ state: "asking" });
/** The user's last request, for calls.js. */
export const lastCall = cell(null);

// The key stays in memory, and in this tab's session storage if the user asks for that: never in cookies or the address.
let key = "";
const KEPT = "onebert-key";

/** The tab's storage; null where the browser forbids it. */
function storage() {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}

/** The key that this tab keeps over a reload; "" for none. */
export const keptKey = () => storage()?.getItem(KEPT) ?? "";
// Aborts all requests of the session at its end, so that no reply reaches the next user or signs that one out.
let life = new AbortController();

/** A server's refusal: a problem of RFC 9457. */
export class Refusal extends Error {
  constructor(problem) {
    super(problem.detail || problem.title || "the request failed");
    this.problem = problem;
    this.reasons = (problem.errors ?? []).map((one) => `${one.path}: ${one.reason}`);
  }
}

/** The address of a path relative to this page, so that a proxy may add a prefix. */
export const address = (path) => new URL(path.replace(/^\//, ""), document.baseURI.replace(/[?#].*$/, "")).href;

/** Quotes each part of a path: path`/v1/tasks/${name}`. */
export const path = (parts, ...names) =>
  parts.map((part, at) => part + (at < names.length ? encodeURIComponent(names[at]).replaceAll("%40", "@") : "")).join("");

export const signedIn = () => key !== "";

const authorization = () => (key ? { Authorization: `Bearer ${key}` } : {});

/**
 * Sends a request. Returns `{value, headers, ms}`, with the milliseconds until the response.
 * Throws a Refusal; a refused key ends the session.
 */
export async function ask(method, where, { body, headers = {}, signal, text = false } = {}) {
  // The longest that a server takes: who has waited enough leaves, which ends the request.
  const sent = { ...authorization(), "X-Request-Timeout": "600", ...headers };
  const until = AbortSignal.any([life.signal, ...(signal ? [signal] : [])]);
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const began = performance.now();
  let answer;
  try {
    const options = { method, headers: sent, signal: until, credentials: "omit", cache: "no-store", redirect: "error" };
    answer = await fetch(address(where), { ...options, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal({ title: "No answer", detail: "The server does not answer." });
  }
  const content = await answer.text();
  const ms = performance.now() - began;
  return { value: read(answer.status, content, text), headers: answer.headers, ms };
}

/** Sends a file and reports progress. Returns `{value, status}` or throws a Refusal. */
export function upload(where, file, progress) {
  return new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    request.open("PUT", address(where));
    request.setRequestHeader("Content-Type", "application/octet-stream");
    for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => progress(event.loaded, event.total);
    request.onload = () => {
      try {
        done({ value: read(request.status, request.responseText), status: request.status });
      } catch (error) {
        fail(error);
      }
    };
    request.onerror = () => fail(new Refusal({ title: "No answer", detail: "The connection broke before the server answered." }));
    life.signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}

/**
 * Takes a key ("" for no key) and asks the server for its principal; without an argument asks again for the current key.
 * `keep` lets the key outlive a reload of this tab.
 */
export async function signIn(given = key, keep = false) {
  begin(given);
  try {
    const { value } = await ask("GET", "/v1/whoami");
    if (keep) storage()?.setItem(KEPT, given);
    session.set({ state: "in", who: value });
  } catch (error) {
    if (error.name === "AbortError") return;
    const out = error.problem?.status === 401;
    // An unreachable server has not refused the key.
    if (out) forget();
    session.set({ state: out ? "out" : "down", said: !out ? error.message : given && "The server does not take this key." });
  }
}

/** Ends the session; `said` is the reason, if the user did not ask for it. */
export function signOut(said = "") {
  begin("");
  forget();
  lastCall.set(null);
  session.set({ state: "out", said });
}

function forget() {
  key = "";
  storage()?.removeItem(KEPT);
}

function begin(given) {
  life.abort();
  life = new AbortController();
  key = given;
}

/** Whether the key's scopes and globs allow an action on a task. */
export function may(scope, task) {
  const { who } = session.get();
  if (!who || !(who.scopes.includes(scope) || who.scopes.includes("admin"))) return false;
  const fits = (glob) => new RegExp(`^${glob.split("*").map((part) => part.replace(/[.]/g, "\\.")).join(".*")}$`).test(task);
  return task === undefined || who.tasks.some(fits);
}

/** Parses a body. Throws a Refusal for a problem, or for a body that is not this server's. */
function read(status, content, text = false) {
  if (status >= 400) throw refused(status, content);
  if (text || !content) return content;
  try {
    return JSON.parse(content);
  } catch {
    throw new Refusal({ title: "No answer", detail: "What answers at this address is not the server of this page." });
  }
}

function refused(status, content) {
  let problem = { status, title: `Status ${status}`, detail: `The server answered with status ${status}.` };
  try {
    problem = { ...problem, ...JSON.parse(content) };
  } catch {
    // A body that is not a problem comes from a proxy; report its status.
  }
  if (status === 401 && session.get().state === "in") signOut("The key is no longer taken.");
  return new Refusal(problem);
}
