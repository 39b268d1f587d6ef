"""The results of a run: a JSON file with every repetition, and a page with tables of ratios, goals and pictures."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onebert_bench.numbers import Spread, ratio
from onebert_bench.report import Goal, Json, Section, goals_page, markdown_table
from onebert_bench.suite.comparisons import baseline, goals
from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.over_http import HttpOutcome
from onebert_bench.suite.peers import ENTRIES
from onebert_bench.suite.pictures import draw_http, draw_scenes
from onebert_bench.suite.scenes import FAN_OUT, Scene
from onebert_bench.suite.servers import PEER_SERVERS

_HEADER = ("what", "tasks", "method", "dtype", "ms", "tokens/s", "time, relative", "to")
_HTTP_HEADER = (
    *("beside", "tasks", "clients", "its requests/s", "ours", "ours, times its", "its p50 ms", "ours", "its memory"),
)


@dataclass
class Results:
    """The results so far.

    Attributes:
        machine: the machine, and the settings of the run.
        tokens: tokens in the batch of each scene.
        versions: version of every package in every environment.
    """

    machine: Json
    real_texts: bool
    scenes: list[tuple[Scene, list[Outcome]]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    http: list[HttpOutcome] = field(default_factory=list)
    parts: dict[str, Section] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes `<machine>.json`."""
        scenes = [
            {name: getattr(scene, name) for name in ("kind", "base", "mix", "texts")}
            | {"tokens": self.tokens[scene.name], "cases": [outcome.as_json() for outcome in outcomes]}
            for scene, outcomes in self.scenes
        ]
        found = {
            "machine": self.machine,
            "real_texts": self.real_texts,
            "scenes": scenes,
            "http": [outcome.as_json() for outcome in self.http],
            **{name: part.as_json() for name, part in self.parts.items()},
            "versions": self.versions,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.machine['name']}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    @property
    def goals(self) -> list[Goal]:
        """Of every scene and part."""
        return [*goals(self.scenes), *(goal for part in self.parts.values() for goal in part.goals)]

    def write_page(self, folder: Path) -> Path:
        """Writes `<machine>.md` and its pictures."""
        name = self.machine["name"]
        pictures = folder / name
        pictures.mkdir(parents=True, exist_ok=True)
        for old in pictures.glob("*.png"):
            old.unlink()
        parts = [self._about(), *goals_page(self.goals)]
        for kind in dict.fromkeys(scene.kind for scene, _ in self.scenes):
            found = [(scene, outcomes) for scene, outcomes in self.scenes if scene.kind == kind]
            file = pictures / f"{kind.replace(' ', '-')}.png"
            file.write_bytes(draw_scenes(found, self.tokens))
            parts.append(f"## {kind.capitalize()}\n\n![{kind}]({name}/{file.name})")
            parts += [_scene(scene, outcomes, self.tokens[scene.name]) for scene, outcomes in found]
        if self.http:
            (pictures / "http.png").write_bytes(draw_http(self.http))
            table = markdown_table(_HTTP_HEADER, [_http_line(outcome) for outcome in self.http])
            parts.append(f"## HTTP\n\n![HTTP]({name}/http.png)\n\n{table}")
        parts += [part.page() for part in self.parts.values()]
        page = folder / f"{name}.md"
        page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        return page

    def _about(self) -> str:
        at = self.machine
        texts = "texts of the real data" if self.real_texts else "made-up texts with the lengths of the real data"
        left_out = "".join(f" {dtype} is left out: this processor does not multiply it." for dtype in at["left_out"])
        return (
            f"# {at['processor']}, {at['instructions']}, {at['cores']} cores, {at['device']}\n\n"
            f"Measured on {at['date']} with `make bench`: {at['threads']} threads, {at['repetitions']} repetitions, "
            f"{texts}. "
            "[README.md](README.md) says how. Numbers are medians with smallest and largest of the repetitions; "
            f"relative times are taken within each repetition. Compare within a table only.{left_out}"
        )


def _scene(scene: Scene, outcomes: Sequence[Outcome], tokens: int) -> str:
    by_case = {outcome.case: outcome for outcome in outcomes}
    lines = [_line(scene, outcome, by_case.get(baseline(scene, outcome.case)), tokens) for outcome in outcomes]
    what = f"a text for {scene.texts} tasks" if scene.kind == FAN_OUT else f"{scene.texts} texts"
    title = f"### {scene.base}, {scene.mix}: {what}, {tokens:,} tokens"
    return f"{title}\n\n{markdown_table(_HEADER, lines)}"


def _line(scene: Scene, outcome: Outcome, against: Outcome | None, tokens: int) -> list[str]:
    case = outcome.case
    extra = "".join(f", {flag}" for flag in case.flags)
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


def _http_line(outcome: HttpOutcome) -> list[str]:
    start = [PEER_SERVERS[outcome.peer].title, str(outcome.tasks), str(outcome.clients)]
    if outcome.failed is not None or outcome.wrong:
        return [*start, f"failed: {outcome.failed}" if outcome.failed else "wrong answers", *["–"] * 5]
    theirs, ours = ([load.rate for load in loads] for loads in (outcome.theirs, outcome.ours))
    p50 = [str(Spread.of([load.latency_ms(0.5) for load in loads])) for loads in (outcome.theirs, outcome.ours)]
    # A peer without any answer in a turn has rate 0 in it, for which there is no ratio.
    times = str(ratio(ours, theirs)) if all(theirs) else "no answer in a turn"
    return [*start, str(Spread.of(theirs)), str(Spread.of(ours)), times, *p50, f"{outcome.memory / 1e9:.1f} GB"]
