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
      // Before anything else runs, so that nothing is set between what was drawn and the watch.
      useLayoutEffect(() => {
        watching.add(again);
        return () => watching.delete(again);
      }, []);
      return value;
    },
  };
}

/**
 * Runs `load(signal)` when one of `inputs` changes. Answers `again()`, which loads anew, and `value`, `error` or neither yet: what was
 * loaded for other inputs is gone at once.
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
