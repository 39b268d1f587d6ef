"""The gate of a task in the file of `onebert apply`: its rules, and the place of its rows."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import model_validator

from onebert_server.cli.apply.form import Inside, Part, PartChange
from onebert_server.client import Client, GateFacts, TaskStatus
from onebert_server.extensions.gate.command import checks
from onebert_server.extensions.gate.reading import pinned_rows
from onebert_server.extensions.gate.rules import Gate, pin
from onebert_store.errors import GateNotFound, InvalidInput
from onebert_store.file.manifest import Manifest
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE
from onebert_store.suggestion import suggestion


class _Wanted(Gate):
    """A gate, and the file or folder of its rows; without, the server has the pinned rows already."""

    data: Inside | None = None

    @model_validator(mode="after")
    def _has_rows(self) -> "_Wanted":
        if self.needs_rows and self.data is None and self.pinned is None:
            raise ValueError("min, max and slices are about rows: name them with data")
        return self


class _Gate:
    """`gate`."""

    key, title, before_moves, model = "gate", "gate", True, _Wanted

    def may_be_of(self, status: TaskStatus) -> bool:
        # A key that may not move aliases sees neither; it is refused, not given a file without the gate.
        return status.gate is not None or status.last_move is None

    def present(self, client: Client, task: str) -> GateFacts | None:
        try:
            return client.gate(task)
        except GateNotFound:
            return None

    def change(
        self, task: str, wanted: _Wanted | None, present: GateFacts | None, manifest: Callable[[], Manifest]
    ) -> PartChange | None:
        before = present.rules if present else {}
        if wanted is None:
            return PartChange(_words(before), lambda client: client.delete_gate(task))
        rows = pinned_rows(str(wanted.data), wanted, manifest()) if wanted.data else []
        gate = pin(wanted, rows) if wanted.data else wanted
        rules = gate.model_dump(exclude={"data"}, exclude_defaults=True)
        if rules == before:
            return None
        if gate.must:
            _check_labels(gate, manifest().labels)
        if gate.needs_rows and not rows:
            raise InvalidInput(f"this server does not have its rows ({str(gate.pinned)[:19]}…): name them with data")
        bodies = [row.model_dump(exclude_defaults=True) for row in rows]
        words = f"{_words(before)} → {_words(rules)}" if before else _words(rules)
        return PartChange(words, lambda client: client.set_gate(task, rules, bodies))

    def of_move(self, alias: str, numbers: Collection[int], wanted: _Wanted | None, present: GateFacts | None) -> str:
        aliases = wanted.aliases if wanted else present.rules.get("aliases", [LIVE]) if present else []
        why = present.refused.get(alias) if present else None
        refused = f", which refused the last move: {why}" if why else ""
        return f"if its gate passes it{refused}" if alias in aliases else ""

    def written(self, present: GateFacts) -> Mapping[str, Any]:
        return present.rules


def _check_labels(gate: Gate, labels: list[str]) -> None:
    """Refuses a text that must have a label which no version could give it."""
    for example in gate.must:
        for label in [example.label] if isinstance(example.label, str) else example.label:
            if label not in labels:
                hint = suggestion(label, labels)
                raise InvalidInput(f"must has the label {printable(label)}, which the task lacks{hint}")


def _words(rules: Mapping[str, Any]) -> str:
    words = [f"{name} {bound}" for name, bound in checks(rules)]
    words += [f"of {', '.join(rules['aliases'])}"] if "aliases" in rules else []
    words += [f"rows {rules['pinned'][:19]}…"] if "pinned" in rules else []
    return ", ".join(words)


PART: Part = _Gate()
