"""The page of all runs: a column for each machine, from the JSON files of `make bench`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from statistics import median

from onebert_bench.numbers import ratio, short
from onebert_bench.report import Cell, Json, markdown_table, shown
from onebert_bench.suite.peers import ENTRIES
from onebert_bench.suite.scenes import FAN_OUT, FEW, Case, Scene, baseline

PAGE = "machines.md"

_ABOUT = (
    "# Machines\n\nMeasured with `make bench`, one whole run each; [README.md](README.md) says how. Cells with ms are "
    "times; others are the time of OneBERT with one BitFit task of that dtype as 1 (int8: of the fastest other dtype; "
    "a peer with several tasks: of OneBERT with as many of its method; one text for 16 tasks: of a sequence for each). "
    "Numbers are medians; the JSON files have every repetition, and batches of 2, 4 and 8 texts. Compare within a "
    "column of a table only; – was not measured, or bfloat16 on a processor that does not multiply it."
)


def write_page(folder: Path) -> Path:
    """Writes the page of all runs whose JSON files are in the folder."""
    files = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    runs = {run["machine"]["instructions"]: run for run in files if "scenes" in run}
    machines = [
        [name, at["processor"], at["cores"], at["date"], at["threads"], at["repetitions"], f"[JSON]({at['name']}.json)"]
        for name, at in ((name, run["machine"]) for name, run in runs.items())
    ]
    header = ("column", "processor", "cores", "measured on", "threads", "repetitions", "")
    parts = [_ABOUT, markdown_table(header, machines), *_scenes(runs), _http(runs)]
    titles = {name: part["title"] for run in runs.values() for name, part in run.items() if _is_section(part)}
    parts += [_section(name, title, runs) for name, title in titles.items()]
    page = folder / PAGE
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def _is_section(part: object) -> bool:
    return isinstance(part, dict) and "rows" in part


def _scenes(runs: Mapping[str, Json]) -> Iterable[str]:
    """A table for each scene: a line for each case, a column for each machine."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for machine, run in runs.items():
        for scene in run["scenes"]:
            if scene["kind"] not in FEW:
                lines = tables.setdefault(_title(scene), {})
                for name, cell in _cells(scene):
                    lines.setdefault(name, {})[machine] = cell
    for title, lines in tables.items():
        rows = [[name, *(cells.get(machine, "–") for machine in runs)] for name, cells in lines.items()]
        yield f"## {title}\n\n{markdown_table(('', *runs), rows)}"


def _title(scene: Json) -> str:
    count = scene["texts"]
    texts = f"a text for {count} tasks" if scene["kind"] == FAN_OUT else f"{count} text{'s' * (count > 1)}"
    return f"{scene['kind'].capitalize()}: {scene['base']}, {scene['mix']}, {texts}, {scene['tokens']:,} tokens"


def _cells(measured: Json) -> Iterable[tuple[str, str]]:
    """Each case of a scene with its time relative to its baseline; of the baseline the milliseconds."""
    names = [field.name for field in fields(Case)]
    # Without peers that an older run had.
    cases = [case for case in measured["cases"] if case["entry"] in ENTRIES]
    outcomes = {Case(**{name: case[name] for name in names}): case for case in cases}
    scene = Scene(measured["kind"], measured["base"], measured["mix"], measured["texts"], tuple(outcomes))
    for case, outcome in outcomes.items():
        against = outcomes[baseline(scene, case)]
        if outcome["failed"] is not None or not outcome["ms"]:
            cell = f"failed: {outcome['failed'] or 'wrong answers'}"
        elif against is outcome or not against["ms"]:
            cell = f"{short(median(outcome['ms']))} ms"
        else:
            cell = short(ratio(outcome["ms"], against["ms"]).middle)
        yield _name(case), cell


def _name(case: Case) -> str:
    """A case; one BitFit task is not named."""
    tasks = f"{max(case.tasks, case.resident):,} {case.method}{' held' * bool(case.resident)}"
    is_plain = case.entry == "floor" or tasks == "1 BitFit"
    return ", ".join([ENTRIES[case.entry].title, *([] if is_plain else [tasks]), *case.flags, case.dtype])


def _http(runs: Mapping[str, Json]) -> str:
    """Answers a second, and how many times the peer's they are."""
    lines: dict[tuple[str, int, int], dict[str, str]] = {}
    for machine, run in runs.items():
        for outcome in run["http"]:
            line = lines.setdefault((outcome["title"], outcome["tasks"], outcome["clients"]), {})
            ours, theirs = ([_rate(load) for load in outcome[side]] for side in ("ours", "theirs"))
            answered = outcome["failed"] is None and theirs and all(theirs)
            line[machine] = f"{short(median(ours))}, {ratio(ours, theirs).middle:.2f}" if answered else "failed"
    rows = [[*key, *(line.get(machine, "–") for machine in runs)] for key, line in lines.items()]
    table = markdown_table(("beside", "tasks", "clients", *runs), rows)
    return f"## HTTP\n\nAnswers of OneBERT a second, and how many times those of the peer.\n\n{table}"


def _rate(load: Json) -> float:
    rate: float = load["answered"] / load["seconds"]
    return rate


def _section(name: str, title: str, runs: Mapping[str, Json]) -> str:
    """The tables of one part, one below the other, with the machine in front."""
    parts = {machine: run[name] for machine, run in runs.items() if _is_section(run.get(name))}
    first = next(iter(parts.values()))
    rows = [[machine, *map(_cell, row)] for machine, part in parts.items() for row in part["rows"]]
    table = markdown_table(("", *first["header"]), rows)
    return "\n\n".join(text for text in (f"## {title}", first["about"], table) if text)


def _cell(cell: Cell | dict[str, Cell]) -> str:
    return shown(cell["middle"] if isinstance(cell, dict) else cell)
