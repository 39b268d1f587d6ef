// Preact, its templates, and shared values, for every module of the page.

import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
import htm from "./vendor/htm.js";

export { Fragment, render, useEffect, useLayoutEffect, useMemo, useRef, useState };
export const html = htm.bind(h);

/** A shared value: `get`, `set`, and `use` in components that redraw when it changes. */
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
      // A layout effect, so that no `set` falls between the drawing and the subscription.
      useLayoutEffect(() => {
        watching.add(again);
        return () => watching.delete(again);
      }, []);
      return value;
    },
  };
}

/**
 * Runs `load(signal)` when one of `inputs` changes. Returns `again()`, which reloads, and `value`, `error` or neither; a change of inputs
 * clears the old value at once.
 */
export function useLoaded(load, inputs) {
  const [found, setFound] = useState({ of: inputs });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    load(stop.signal).then(
      (value) => stop.signal.aborted || setFound({ of: inputs, value }),
      (error) => stop.signal.aborted || setFound({ of: inputs, error }),
    );
    return () => stop.abort();
  }, [...inputs, turn]);
  const again = () => {
    setFound(({ of, value }) => ({ of, value }));
    setTurn((at) => at + 1);
  };
  const { value, error } = found.of.every((one, at) => one === inputs[at]) ? found : {};
  return { value, error, again };
}

/** Calls `again` `every` milliseconds after each load while the tab is seen, and once it is seen again. */
export function useRefreshed({ value, error, again }, every) {
  useEffect(() => {
    if (!value && !error) return;
    const look = () => document.hidden || again();
    const timer = setTimeout(look, every);
    document.addEventListener("visibilitychange", look);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [value, error]);
}

/** Whether a media query fits now. */
export function useMedia(text) {
  const query = useMemo(() => matchMedia(text), [text]);
  const [fits, setFits] = useState(query.matches);
  useEffect(() => {
    const changed = (event) => setFits(event.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, [query]);
  return fits;
}
