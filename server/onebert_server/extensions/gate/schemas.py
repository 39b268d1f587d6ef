"""The body that sets a gate."""

from pydantic import Field

from onebert_server.extensions.gate.rules import MAX_ROWS, Gate, PinnedRow
from onebert_server.http.schemas.common import RequestBody


class GateRequest(RequestBody):
    """A task's gate, and its pinned rows if it has min, max or slices."""

    rules: Gate
    rows: list[PinnedRow] = Field(default_factory=list, max_length=MAX_ROWS)
