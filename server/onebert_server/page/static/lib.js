// What every module of the page draws with: Preact, its templates, and values that several parts share.

import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
import htm from "./vendor/htm.js";

export { Fragment, render, useEffect, useLayoutEffect, useMemo, useRef, useState };
export const html = htm.bind(h);

/** A value that parts of the page share: `get`, `set`, and `use` in what is drawn anew when it changes. */
export function cell(value) {
  const watching = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const watch of [...watching]) watch({});
    },
    use() {
      const [, again] = useState(null);
      useEffect(() => {
        watching.add(again);
        return () => watching.delete(again);
      }, []);
      return value;
    },
  };
}

/** Runs `load(signal)` when one of `inputs` changes: `{value}`, `{error}` or neither yet, and `again()`. */
export function useLoaded(load, inputs) {
  const [found, setFound] = useState({});
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    setFound((before) => ({ value: before.value, stale: true }));
    load(stop.signal).then(
      (value) => stop.signal.aborted || setFound({ value }),
      (error) => stop.signal.aborted || setFound({ error }),
    );
    return () => stop.abort();
  }, [...inputs, turn]);
  return { ...found, again: () => setTurn((at) => at + 1) };
}
