"""The gate of a task."""

from typing import Annotated, Any

from msgspec import field

from onebert_server.contract.declared import Declared, Rule


class GateFacts(Declared, frozen=True, kw_only=True):
    """A task's gate; its pinned rows are counted, and not shown."""

    _document = "GateResponse"

    task: str
    digest: Annotated[str, Rule("of the rules, as a report names it")]
    rules: Annotated[dict[str, Any], Rule("as in the file of `onebert apply`")]
    rows: Annotated[int, Rule("pinned rows that the server keeps")] = 0
    refused: Annotated[
        dict[str, str], Rule("why it refused the last move of an alias, by the server that is asked, since its start")
    ] = field(default_factory=dict)
