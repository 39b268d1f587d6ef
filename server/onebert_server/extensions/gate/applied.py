"""The gate of a task in the file of `onebert apply`: its rules, and the place of its rows."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onebert_server.cli.apply.form import path_of
from onebert_server.cli.apply.key import Key
from onebert_server.cli.apply.part import Change, Part
from onebert_server.client import Client, GateFacts
from onebert_server.extensions.gate.command import checks
from onebert_server.extensions.gate.reading import pinned_rows
from onebert_server.extensions.gate.rules import Gate, PinnedRow, pin, read_rules
from onebert_store.errors import GateNotFound, InvalidInput, OneBertError
from onebert_store.file.manifest import Manifest
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion


class _Wanted(NamedTuple):
    """A gate, and the file or folder of its rows; without, the server has the pinned rows already."""

    key: Key
    gate: Gate
    data: Path | None


class _Gate:
    """`gate`."""

    key, title, before_moves = "gate", "gate", True

    def wanted(self, key: Key, folder: Path) -> _Wanted:
        table = key.table()
        data = path_of(table["data"], folder) if "data" in table else None
        try:
            gate = read_rules({name: each.value for name, each in table.items() if name != "data"})
        except InvalidInput as error:
            # Rules of the gate as a whole have no key of their own.
            rule = error.detail.removeprefix("gate: ")
            raise key.wrong(rule) if rule != error.detail else InvalidInput(f"{key.path}.{rule}") from None
        if gate.needs_rows and data is None and gate.pinned is None:
            raise key.wrong("min, max and slices are about rows: name them with data")
        return _Wanted(key, gate, data)

    def present(self, client: Client, task: str) -> GateFacts | None:
        try:
            return client.gate(task)
        except GateNotFound:
            return None

    def change(
        self, task: str, wanted: _Wanted, present: GateFacts | None, manifest: Callable[[], Manifest]
    ) -> Change | None:
        gate, rows = wanted.gate, list[PinnedRow]()
        try:
            if wanted.data is not None:
                rows = pinned_rows(str(wanted.data), gate, manifest())
                gate = pin(gate, rows)
        except OneBertError as error:
            raise wanted.key.refused(error) from None
        rules = gate.model_dump(exclude_defaults=True)
        before = present.rules if present else {}
        if rules == before:
            return None
        _check_musts(wanted.key, gate, manifest)
        if gate.needs_rows and not rows:
            raise wanted.key.wrong(
                f"this server does not have its rows ({str(gate.pinned)[:19]}…): name them with data"
            )
        bodies = [row.model_dump(exclude_defaults=True) for row in rows]
        return Change(_words(before, rules, len(rows)), lambda client: client.set_gate(task, rules, bodies))

    def removal(self, task: str, present: GateFacts) -> Change:
        rows = f" and {present.rows:,} rows" if present.rows else ""
        return Change(f"{_listed(present.rules)}{rows}", lambda client: client.delete_gate(task))

    def written(self, present: GateFacts) -> Mapping[str, Any]:
        return present.rules


def _check_musts(key: Key, gate: Gate, manifest: Callable[[], Manifest]) -> None:
    """Refuses a text that must have a label which no version could give it."""
    known = manifest().labels if gate.must else ()
    for example in gate.must:
        for label in [example.label] if isinstance(example.label, str) else example.label:
            if label not in known:
                hint = suggestion(label, known)
                raise key.wrong(f"must has the label {printable(label)}, which the task lacks{hint}")


def _listed(rules: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {bound}" for name, bound in checks(rules))


def _words(before: Mapping[str, Any], after: Mapping[str, Any], rows: int) -> str:
    """Lists the checks, after a change the changed ones."""
    of_rows = f"{rows:,} rows" if rows else ""
    if not before:
        return ", ".join(filter(None, [_listed(after), of_rows]))
    was, now = dict(checks(before)), dict(checks(after))
    lines = [f"{name} {was.get(name, 'new')} → {now.get(name, 'gone')}" for name in {**was, **now}]
    lines = [line for line, name in zip(lines, {**was, **now}, strict=True) if was.get(name) != now.get(name)]
    aliases = [", ".join(rules.get("aliases", ["live"])) for rules in (before, after)]
    lines += [f"aliases {aliases[0]} → {aliases[1]}"] if aliases[0] != aliases[1] else []
    lines += [f"other rows: {rows:,}"] if rows and before.get("pinned") != after.get("pinned") else []
    return ", ".join(lines)


PART: Part = _Gate()
