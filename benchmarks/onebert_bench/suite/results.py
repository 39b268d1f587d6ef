"""The results of a run: a JSON file with every repetition, and a page with tables of ratios."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onebert_bench.numbers import Spread, ratio
from onebert_bench.report import Json, Section, markdown_table
from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.over_http import HttpOutcome
from onebert_bench.suite.peers import ENTRIES
from onebert_bench.suite.scenes import FAN_OUT, Case, Scene, baseline
from onebert_bench.suite.servers import PEER_SERVERS

_HTTP_HEADER = ("beside", "tasks", "clients", "its requests/s", "ours", "ours, times its", "its memory")


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

    def write_page(self, folder: Path) -> Path:
        """Writes `<machine>.md`; scenes with the same cases share a table."""
        tables: dict[tuple[Case, ...], list[tuple[Scene, list[Outcome]]]] = {}
        for scene, outcomes in self.scenes:
            tables.setdefault(scene.cases, []).append((scene, outcomes))
        parts = [self._about(), *(self._table(columns) for columns in tables.values())]
        if self.http:
            parts.append(f"## HTTP\n\n{markdown_table(_HTTP_HEADER, [_http_line(outcome) for outcome in self.http])}")
        parts += [part.page() for part in self.parts.values()]
        page = folder / f"{self.machine['name']}.md"
        page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        return page

    def _table(self, columns: Sequence[tuple[Scene, list[Outcome]]]) -> str:
        """A column for each scene, a line for each case."""
        kinds, bases = (dict.fromkeys(getattr(scene, name) for scene, _ in columns) for name in ("kind", "base"))
        head = [f"{_batch(scene)}, {self.tokens[scene.name]:,} tokens" for scene, _ in columns]
        lines = [
            [_name(case), case.dtype, *(_cell(scene, outcomes, number) for scene, outcomes in columns)]
            for number, case in enumerate(columns[0][0].cases)
        ]
        title = f"{', '.join(kinds)}: {', '.join(bases)}"
        return f"## {title[0].upper()}{title[1:]}\n\n{markdown_table(('', 'dtype', *head), lines)}"

    def _about(self) -> str:
        at = self.machine
        texts = "texts of the real data" if self.real_texts else "made-up texts with the lengths of the real data"
        left_out = "".join(f" {dtype} is left out: this processor does not multiply it." for dtype in at["left_out"])
        return (
            f"# {at['processor']}, {at['instructions']}, {at['cores']} cores\n\n"
            f"Measured on {at['date']} with `make bench`: {at['threads']} threads, {at['repetitions']} repetitions, "
            f"{texts}. "
            "[README.md](README.md) says how. Cells with ms are times; others are the time of OneBERT with one BitFit "
            "task of that dtype as 1 (int8: of the fastest other dtype; a peer with several tasks: of OneBERT with as "
            "many of its method; one text for 16 tasks: of a sequence for each). Numbers are medians with smallest and "
            f"largest of the repetitions. Compare within a column only.{left_out}"
        )


def _batch(scene: Scene) -> str:
    texts = (
        f"a text for {scene.texts} tasks" if scene.kind == FAN_OUT else f"{scene.texts} text{'s' * (scene.texts > 1)}"
    )
    return f"{scene.base}, {scene.mix}, {texts}"


def _name(case: Case) -> str:
    """A case without its dtype; one BitFit task is not named."""
    tasks = f"{max(case.tasks, case.resident):,} {case.method}{' held' * bool(case.resident)}"
    is_plain = case.entry == "floor" or tasks == "1 BitFit"
    return ", ".join([ENTRIES[case.entry].title, *([] if is_plain else [tasks]), *case.flags])


def _cell(scene: Scene, outcomes: Sequence[Outcome], number: int) -> str:
    """The time relative to the case's baseline; of the baseline the milliseconds."""
    outcome = outcomes[number]
    if outcome.failed is not None:
        return f"failed: {outcome.failed}"
    if outcome.wrong:
        return f"wrong answers, off by {outcome.error:.2g}"
    against = next(other for other in outcomes if other.case == baseline(scene, outcome.case))
    return (
        str(ratio(outcome.ms, against.ms))
        if against.counts and against is not outcome
        else f"{Spread.of(outcome.ms)} ms"
    )


def _http_line(outcome: HttpOutcome) -> list[str]:
    start = [PEER_SERVERS[outcome.peer].title, str(outcome.tasks), str(outcome.clients)]
    if outcome.failed is not None or outcome.wrong:
        return [*start, f"failed: {outcome.failed}" if outcome.failed else "wrong answers", *["–"] * 4]
    theirs, ours = ([load.rate for load in loads] for loads in (outcome.theirs, outcome.ours))
    # A peer without any answer in a turn has rate 0 in it, for which there is no ratio.
    times = str(ratio(ours, theirs)) if all(theirs) else "no answer in a turn"
    return [*start, str(Spread.of(theirs)), str(Spread.of(ours)), times, f"{outcome.memory / 1e9:.1f} GB"]
