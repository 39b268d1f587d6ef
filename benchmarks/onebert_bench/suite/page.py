"""A run as a page: tables of ratios with their spread, and pictures."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from onebert_bench.pages import markdown_table
from onebert_bench.suite.comparisons import HEADER, baseline, goal_lines
from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.over_http import HttpOutcome
from onebert_bench.suite.peers.entries import ENTRIES
from onebert_bench.suite.peers.servers import PEER_SERVERS
from onebert_bench.suite.pictures import draw_http, draw_scenes
from onebert_bench.suite.results import Results
from onebert_bench.suite.scenes import FAN_OUT, Scene
from onebert_bench.suite.spread import Spread, ratio

_HEADER = ("what", "tasks", "method", "dtype", "ms", "tokens/s", "time, relative", "to")


def write_page(results: Results, folder: Path) -> Path:
    """Writes `<machine>.md` and its pictures into a folder."""
    name = results.machine["name"]
    pictures = folder / name
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.png"):
        old.unlink()
    parts = [_about(results)]
    goals = [*goal_lines(results.scenes), *chain.from_iterable(part.goals() for part in results.parts.values())]
    if goals:
        parts.append(f"## Goals\n\n{markdown_table(HEADER, goals)}")
    for kind in dict.fromkeys(scene.kind for scene, _ in results.scenes):
        found = [(scene, outcomes) for scene, outcomes in results.scenes if scene.kind == kind]
        file = pictures / f"{kind.replace(' ', '-')}.png"
        file.write_bytes(draw_scenes(found, results.tokens))
        parts.append(f"## {kind.capitalize()}\n\n![{kind}]({name}/{file.name})")
        parts += [_scene(scene, outcomes, results.tokens[scene.name]) for scene, outcomes in found]
    if results.http:
        (pictures / "http.png").write_bytes(draw_http(results.http))
        parts.append(f"## HTTP\n\n![HTTP]({name}/http.png)\n\n{_http(results.http)}")
    parts += [f"## {title.capitalize()}\n\n{part.page()}" for title, part in results.parts.items()]
    page = folder / f"{name}.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def _about(results: Results) -> str:
    at = results.machine
    texts = "texts of the real data" if results.real_texts else "made-up texts with the lengths of the real data"
    left_out = "".join(f" {dtype} is left out: this processor does not multiply it." for dtype in at["left_out"])
    return (
        f"# {at['processor']}, {at['cores']} cores, {at['device']}\n\n"
        f"Measured on {at['date']} with `make bench`: {at['threads']} threads, {at['repetitions']} repetitions, "
        f"{texts}. "
        "[README.md](README.md) says how. Numbers are medians with smallest and largest of the repetitions; relative "
        f"times are taken within each repetition. Compare within a table only.{left_out}"
    )


def _scene(scene: Scene, outcomes: Sequence[Outcome], tokens: int) -> str:
    by_case = {outcome.case: outcome for outcome in outcomes}
    lines = [_line(scene, outcome, by_case.get(baseline(scene, outcome.case)), tokens) for outcome in outcomes]
    what = f"a text for {scene.texts} tasks" if scene.kind == FAN_OUT else f"{scene.texts} texts"
    title = f"### {scene.base}, {scene.mix}: {what}, {tokens:,} tokens"
    return f"{title}\n\n{markdown_table(_HEADER, lines)}"


def _line(scene: Scene, outcome: Outcome, against: Outcome | None, tokens: int) -> list[str]:
    case = outcome.case
    flags = {
        "another task each time": case.rotate,
        "one text": case.shared,
        "a sequence each": case.fan_out and not case.shared,
        "batch-invariant": case.invariant,
    }
    extra = "".join(f", {flag}" for flag, is_set in flags.items() if is_set)
    note = f" ({outcome.note})" if outcome.note else ""
    method = "–" if case.entry == "floor" else case.method
    start = [f"{ENTRIES[case.entry].title}{extra}{note}", f"{max(case.tasks, case.resident):,}", method, case.dtype]
    if outcome.failed is not None:
        return [*start, f"failed: {outcome.failed}", "–", "–", "–"]
    if outcome.wrong:
        return [*start, f"wrong answers, off by {outcome.error:.2g}", "–", "–", "–"]
    rate = f"{scene.tokens(case, tokens) / Spread.of(outcome.ms).middle * 1e3:,.0f}"
    if against is None or not against.counts:
        return [*start, str(Spread.of(outcome.ms)), rate, "–", "–"]
    to = f"{against.case.tasks} {against.case.method}, {against.case.dtype}"
    return [*start, str(Spread.of(outcome.ms)), rate, str(ratio(outcome.ms, against.ms)), to]


def _http(outcomes: Sequence[HttpOutcome]) -> str:
    header = (
        "beside",
        "tasks",
        "clients",
        "its requests/s",
        "ours",
        "ours, times its",
        "its p50 ms",
        "ours",
        "its memory",
    )
    return markdown_table(header, [_http_line(outcome) for outcome in outcomes])


def _http_line(outcome: HttpOutcome) -> list[str]:
    start = [PEER_SERVERS[outcome.peer].title, str(outcome.tasks), str(outcome.clients)]
    if outcome.failed is not None or outcome.wrong:
        return [*start, f"failed: {outcome.failed}" if outcome.failed else "wrong answers", *["–"] * 5]
    theirs, ours = ([load.rate for load in loads] for loads in (outcome.theirs, outcome.ours))
    p50 = [str(Spread.of([load.latency_ms(0.5) for load in loads])) for loads in (outcome.theirs, outcome.ours)]
    # A peer without any answer in a turn has rate 0 in it, for which there is no ratio.
    times = str(ratio(ours, theirs)) if all(theirs) else "no answer in a turn"
    rates = [str(Spread.of(theirs)), str(Spread.of(ours)), times]
    return [*start, *rates, *p50, f"{outcome.memory / 1e9:.1f} GB"]
