"""The body that sets a gate."""

from pydantic import ConfigDict, Field

from onebert_server.extensions.gate.rules import MAX_ROWS, Gate, PinnedRow
from onebert_server.http.schemas.common import RequestBody


class GateRequest(RequestBody):
    """A task's gate, and its pinned rows if it has min, max or slices."""

    # By their types alone, its fields would hold rules about rows and none of these.
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"rules": {"must": [{"text": "where is my order?", "label": "question"}]}}]}
    )

    rules: Gate
    rows: list[PinnedRow] = Field(default_factory=list, max_length=MAX_ROWS)
