// The server's load: requests, latency, batches and queues, from /metrics, every two seconds.

import { ask, session } from "../api.js";
import { note } from "../calls.js";
import { html, useEffect, useMedia, useRef, useState } from "../lib.js";
import { buckets, quantile, samples, sum } from "../metrics.js";
import { decimal, Refused, Waiting } from "../parts.js";

const EVERY = 2000;
// Seconds.
const KEPT = 300;
const NAMES = [
  "onebert_http_requests_total", "onebert_http_request_seconds_bucket", "onebert_batch_sequences_sum", "onebert_batch_sequences_count",
  "onebert_queue_sequences",
];
const PATH = `/metrics?${new URLSearchParams(NAMES.map((name) => ["name[]", name]))}`;

// Steps of a plot's time axis in seconds. Labels have whole seconds, so smaller steps would repeat them. Without steps over a day a single
// point, around which uPlot draws years, has no labels.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];

const PLOTS = [
  { title: "Requests", unit: "a second", lines: ["requests"], none: "No requests yet." },
  { title: "Latency", unit: "ms, p50 and p95", lines: ["p50", "p95"], none: "No requests yet." },
  { title: "Batch", unit: "sequences", lines: ["batch"], none: "No batches yet." },
  { title: "Queue", unit: "sequences that wait", lines: ["queue"], none: "Nothing has waited." },
];

// The last scrape and the points of one session, which outlive a visit of another view: the first point after it is of all
// that came meanwhile.
let kept = {};

// Excludes this page's own requests.
const answers = ({ route = "" }) => !["/metrics", "unmatched", "/page/{path:path}", "/"].includes(route) && !route.endsWith("z");

/** One point per line, from two scrapes that are `seconds` apart. */
function point(before, after, seconds) {
  const change = (name, fits) => sum(after, name, fits) - sum(before, name, fits);
  const at = (q) => {
    const [first, second] = [before, after].map((one) => buckets(one, "onebert_http_request_seconds", answers));
    const value = quantile(q, first, second);
    return value === null ? null : value * 1000;
  };
  const batches = change("onebert_batch_sequences_count");
  return {
    requests: Math.max(0, change("onebert_http_requests_total", answers)) / seconds,
    p50: at(0.5),
    p95: at(0.95),
    batch: batches > 0 ? change("onebert_batch_sequences_sum") / batches : null,
    queue: sum(after, "onebert_queue_sequences"),
  };
}

export function Load() {
  const { who } = session.use();
  if (kept.who !== who) kept = { who, points: [], before: null };
  const [points, setPoints] = useState(kept.points);
  const [error, setError] = useState(null);
  useEffect(() => {
    note({ method: "GET", path: "/metrics" });
    let stopped = false, timer = null;
    const look = async () => {
      try {
        const { value } = await ask("GET", PATH, { text: true });
        if (stopped) return;
        add({ at: performance.now(), time: Date.now() / 1000, samples: samples(value) });
        setPoints(kept.points);
        setError(null);
      } catch (failed) {
        if (stopped) return;
        setError(failed);
        if (failed.problem?.status === 403) return;
      }
      timer = setTimeout(look, EVERY);
    };
    look();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, []);
  return html`
    <h1 tabindex="-1">Load</h1>
    ${error && html`<${Refused} error=${error} />`}
    ${!error && points.length === 0 && html`<${Waiting}>Two looks at the server make the first point…</${Waiting}>`}
    <div class="plots">${points.length > 0 && PLOTS.map((plot) => html`<${Plot} key=${plot.title} ...${plot} points=${points} />`)}</div>`;
}

/** Adds a scrape's point, and drops points that are older than five minutes. */
function add(seen) {
  const { before, points } = kept;
  const seconds = before && (seen.at - before.at) / 1000;
  // Right after a visit of another view the time would be too short for a rate.
  if (before && seconds < 1) return;
  kept.before = seen;
  if (before) kept.points = [...points, { time: seen.time, ...point(before.samples, seen.samples, seconds) }].filter(({ time }) => time > seen.time - KEPT);
}

const shown = (value) => (value === null ? "–" : decimal(value));

function Plot({ title, unit, lines, none, points }) {
  const last = lines.map((line) => shown(points.at(-1)[line]));
  return html`
    <figure class="card plot">
      <figcaption><h2>${title}</h2><p><b>${last.join(" / ")}</b> <span class="quiet">${unit}</span></p></figcaption>
      ${points.some((one) => lines.some((line) => one[line])) ? html`<${Lines} label=${`${title}, ${unit}: now ${last.join(" and ")}`} lines=${lines} points=${points} />`
        : html`<p class="quiet canvas">${none}</p>`}
    </figure>`;
}

function Lines({ label, lines, points }) {
  const box = useRef();
  const plot = useRef();
  const dark = useMedia("(prefers-color-scheme: dark)");
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px Inter, system-ui, sans-serif" };
    const place = box.current;
    plot.current = new window.uPlot({
      width: place.clientWidth, height: 150, legend: { show: false }, cursor: { show: false }, padding: [8, 8, 0, 0],
      scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.15)] } },
      axes: [{ ...axis, space: 70, size: 28, incrs: STEPS, values: (_, times) => times.map(clock) }, { ...axis, size: 44, space: 34 }],
      series: [{}, ...lines.map((_, at) => ({ stroke: colour(at ? "--warm" : "--accent"), width: 1.75, points: { size: 4 }, spanGaps: true }))],
    }, data(points, lines), place);
    const watch = new ResizeObserver(() => plot.current.setSize({ width: place.clientWidth, height: 150 }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      plot.current.destroy();
    };
  }, [dark]);
  useEffect(() => plot.current.setData(data(points, lines)), [points]);
  return html`<div ref=${box} class="canvas" role="img" aria-label=${label}></div>`;
}

const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");
const data = (points, lines) => [points.map(({ time }) => time), ...lines.map((line) => points.map((one) => one[line]))];
