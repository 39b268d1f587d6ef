"""Gates as documents of the registry."""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from onebert_server.contract.status import GateInForce
from onebert_server.extensions.gate.rules import Gate, PinnedRow
from onebert_store.errors import StoreCorrupt
from onebert_store.file import strict_json
from onebert_store.file.fields import Strict
from onebert_store.registry.documents import Documents

# The name of a task's document.
NAME = "gate"


class StoredGate(NamedTuple):
    """A gate of the registry and its pinned rows, which gates of earlier releases lack; and the document with both."""

    gate: Gate
    rows: Sequence[PinnedRow]
    document: str

    @property
    def counted(self) -> GateInForce:
        """Its aliases, and the numbers of its rows and checks."""
        return GateInForce(aliases=self.gate.aliases, rows=len(self.rows), checks=self.gate.checks)


class _Document(Strict):
    """A gate in the registry."""

    rules: Gate
    rows: list[PinnedRow] | None = None


def read(documents: Documents, task: str) -> StoredGate | None:
    """Returns the gate of a task, if it has one; raises StoreCorrupt."""
    content = documents.read(task, NAME)
    if content is None:
        return None
    try:
        document = _Document.model_validate_json(content)
        return StoredGate(document.rules, document.rows or (), content)
    except ValidationError:
        raise StoreCorrupt(f"the database holds a damaged gate of {task}") from None


def written(gate: Gate, rows: Sequence[PinnedRow]) -> str:
    """The document of a gate."""
    return strict_json.encode(_Document(rules=gate, rows=[*rows] or None).model_dump(exclude_defaults=True))
