"""Runs a gate by the ordinary API: the rows stay with the client, and a server gets their numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onebert_server.cli.compare.asking import ask, require_answer
from onebert_server.cli.compare.labeled import labeled_rows
from onebert_server.cli.gate.local import LocalGate
from onebert_server.client import Client, GateFacts, Input, TaskResult, VersionFacts
from onebert_server.gate.judge import Answer, Rows, answer_of, judge, measure, missed, right_of, wrong_rows
from onebert_server.gate.report import Report, Side
from onebert_server.gate.rules import Gate, PinnedRow, pin, read_toml
from onebert_store.command import console
from onebert_store.errors import GateFailed, GateNotFound, InvalidData, InvalidInput
from onebert_store.file.manifest import Manifest, parse_manifest
from onebert_store.file.strict_json import shown
from onebert_store.tables.columns import Columns
from onebert_store.tables.tables import read_source

_LONGEST_CELL = 256


def gate_of(file: Path) -> Gate:
    """The gate in a file; raises InvalidInput."""
    try:
        content = file.read_bytes()
    except OSError:
        raise InvalidInput(f"{file.name} cannot be read") from None
    return read_toml(content)


def pinned_rows(data: str, gate: Gate, manifests: Sequence[Manifest]) -> list[PinnedRow]:
    """The rows of the test split (else validation), as `onebert diff` reads them; raises InvalidData."""
    columns = gate.slices.columns if gate.slices else ()
    rows = labeled_rows(read_source(data), None, Columns(), manifests, columns)
    found = []
    for row in rows:
        if row.label is None:
            unit, number = next(iter(row.place.items()))
            raise InvalidData(f"{unit} {number} has no label: a gate needs one in each row")
        text, pair = (row.input, None) if isinstance(row.input, str) else row.input
        several = manifests[0].task_type == "multi_label"
        label = row.label if isinstance(row.label, float) else list(row.label) if several else row.label[0]
        cells = {name: cell[:_LONGEST_CELL] for name, cell in row.cells.items()}
        found.append(PinnedRow(text=text, text_pair=pair, label=label, slices=cells))
    return found


def report_of(client: Client, local: LocalGate, task: str, version: int, live: int | None) -> dict[str, Any] | None:
    """Runs a gate on its rows, with the rules of its file, else of the server; returns the report for the server.

    None if the server runs the gate itself. Raises GateFailed if the version does not pass, before the server is asked
    to move anything.
    """
    kept = _kept(client, task)
    if local.file is None and kept is None:
        raise GateNotFound(f"{task} has no gate; name a file with --gate")
    gate = gate_of(local.file) if local.file else Gate.model_validate(kept.rules if kept else {})
    sides = [client.version(task, number) for number in (version, live) if number is not None]
    manifests = [parse_manifest(side.manifest) for side in sides]
    rows = pinned_rows(local.data, gate, manifests) if local.data is not None else []
    gate = pin(gate, rows)
    if gate.needs_rows and not rows:
        if kept is not None and kept.rows and kept.digest == gate.digest:
            return None
        raise InvalidInput("min, max and slices are about rows: name them with --data")
    made = _run(local, gate, rows, sides, manifests)
    report = made.model_dump(mode="json")
    if made.failed:
        raise GateFailed(made.refusal, report)
    return report


def print_report(report: Mapping[str, Any]) -> None:
    """Prints each check of a report, and the first wrong answers."""
    checks = ((one["name"], _number(one["value"]), _number(one["bound"]), _mark(one)) for one in report["checks"])
    console.show(("check", "value", "bound", ""), checks, ("value", "bound"))
    wrong = [("must", one) for one in report["must"]] + [("row", one) for one in report["worst"]]
    if wrong:
        console.say("")
        cells = (
            (f"{where} {one['row']}", *(_said(one[side]) for side in ("right", "candidate", "live")))
            for where, one in wrong
        )
        console.show(("where", "right", "answered", "live"), cells)


def _kept(client: Client, task: str) -> GateFacts | None:
    try:
        return client.gate(task)
    except GateNotFound:
        return None


def _run(
    local: LocalGate,
    gate: Gate,
    rows: Sequence[PinnedRow],
    sides: Sequence[VersionFacts],
    manifests: Sequence[Manifest],
) -> Report:
    candidate, *before = sides
    gate.check_type(manifests[0].task_type)
    gate.check_rows(rows, manifests[0].task_type)
    about = Report(
        task=candidate.task,
        candidate=_side(candidate),
        live=_side(before[0]) if before else None,
        rules=gate.digest,
        rows=gate.pinned,
    )
    numbers, worst = None, []
    if rows:
        answers = _answers(local, sides, manifests, [row.input for row in rows])
        right, slices = [right_of(row.label) for row in rows], [row.slices for row in rows]
        judged = Rows(right, answers[0], answers[1] if before else None, slices)
        numbers, worst = measure(gate, judged), wrong_rows(judged)
    [answers_to_must] = _answers(local, sides[:1], manifests, [one.input for one in gate.must])
    return judge(gate, about, numbers, worst, missed(gate, answers_to_must))


def _answers(
    local: LocalGate, sides: Sequence[VersionFacts], manifests: Sequence[Manifest], inputs: Sequence[Input]
) -> list[list[Answer]]:
    """The answers of each version, asked in the same requests."""
    items = [(f"{side.task}@{side.version}", one) for one in inputs for side in sides]
    results = [require_answer(one) for one in ask(local.url, local.api_key, items)]
    of_sides = (results[place :: len(sides)] for place in range(len(sides)))
    return [[_answer(one, manifest) for one in own] for own, manifest in zip(of_sides, manifests, strict=False)]


def _answer(one: TaskResult, manifest: Manifest) -> Answer:
    return answer_of(manifest.task_type, one.label, one.labels, one.score, one.abstained)


def _side(version: VersionFacts) -> Side:
    return Side(version=version.version, digest=version.digest)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _mark(check: Mapping[str, Any]) -> str:
    return "passed" if check["passed"] else "failed"


def _said(answer: Any) -> str:
    if isinstance(answer, float):
        return f"{answer:.3f}"
    return "–" if answer is None else shown(answer if isinstance(answer, str) else ", ".join(answer))
