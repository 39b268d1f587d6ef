// The server's interface: one request at a time, its refusals, and the key, which is here and nowhere else.

import { cell } from "./lib.js";

/** Who asks: `{state: "asking" | "in" | "out", who, said}`; `said` is why a key was refused. */
export const session = cell({ state: "asking" });
/** The request that the person who looks at this made last, for calls.js. */
export const lastCall = cell(null);

// In memory alone: not in storage, not in a cookie, not in an address. Who leaves the page takes it along.
let key = "";
// Aborted with its session, and with it all requests of that session: none of their answers is shown to who comes next, or signs them out.
let life = new AbortController();

/** What a server says when it refuses: a problem of RFC 9457. */
export class Refusal extends Error {
  constructor(problem) {
    super(problem.detail || problem.title || "the request failed");
    this.problem = problem;
    this.reasons = (problem.errors ?? []).map((one) => `${one.path}: ${one.reason}`);
  }
}

/** The address of a path, beside this page wherever a proxy has it. */
export const address = (path) => new URL(path.replace(/^\//, ""), document.baseURI.replace(/[?#].*$/, "")).href;

/** A path with each part of it quoted: path`/v1/tasks/${name}`. */
export const path = (parts, ...names) =>
  parts.map((part, at) => part + (at < names.length ? encodeURIComponent(names[at]).replaceAll("%40", "@") : "")).join("");

export const signedIn = () => key !== "";

const authorization = () => (key ? { Authorization: `Bearer ${key}` } : {});

/**
 * Sends a request. Answers `{value, headers, ms}`, with the milliseconds until the answer was here.
 * Throws a Refusal; one that says that the key is not taken ends the session.
 */
export async function ask(method, where, { body, headers = {}, signal, text = false } = {}) {
  const sent = { ...authorization(), ...headers };
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

/** Sends a file and says how far it is. Answers `{value, status}` or throws a Refusal. */
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

/** Takes a key, or with "" none, and asks the server whose it is; without one given, once more for the one that it has. */
export async function signIn(given = key) {
  begin(given);
  try {
    const { value } = await ask("GET", "/v1/whoami");
    session.set({ state: "in", who: value });
  } catch (error) {
    if (error.name === "AbortError") return;
    const out = error.problem?.status === 401;
    // A server that does not answer has not refused the key.
    if (out) key = "";
    session.set({ state: out ? "out" : "down", said: given || !out ? error.message : "" });
  }
}

/** Ends the session; `said` is why, where nobody asked for it. */
export function signOut(said = "") {
  begin("");
  lastCall.set(null);
  session.set({ state: "out", said });
}

function begin(given) {
  life.abort();
  life = new AbortController();
  key = given;
}

/** Whether who asks may do something with a task, as far as its key's scopes and globs say. */
export function may(scope, task) {
  const { who } = session.get();
  if (!who || !(who.scopes.includes(scope) || who.scopes.includes("admin"))) return false;
  const fits = (glob) => new RegExp(`^${glob.split("*").map((part) => part.replace(/[.]/g, "\\.")).join(".*")}$`).test(task);
  return task === undefined || who.tasks.some(fits);
}

/** What a body says. Throws a Refusal where it is one, or comes from something else than this server. */
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
    // What is no problem comes from a proxy; its status says what there is to say.
  }
  if (status === 401 && session.get().state === "in") signOut("The key is no longer taken.");
  return new Refusal(problem);
}
