// The page's route: the address after `#`, which browsers never send to a server.

import { cell } from "./lib.js";

const read = () => {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
};

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** `{parts, query}` of the address. */
export const here = cell(read());
addEventListener("hashchange", () => here.set(read()));

export const link = (parts, query = {}) => {
  const said = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${said && `?${said}`}`;
};
/** Updates the address without a step in the browser's history. */
export function stay(parts, query) {
  history.replaceState(null, "", link(parts, query));
  here.set(read());
}
