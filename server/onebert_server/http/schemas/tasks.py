"""Bodies of changes to tasks and aliases, and the descriptions of a version that only the page reads."""

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from onebert_server.contract.declared import NAME
from onebert_server.contract.tasks import VersionFacts
from onebert_server.gate.report import Report
from onebert_server.gate.rules import MAX_ROWS, Gate, PinnedRow
from onebert_server.http.schemas.common import RequestBody
from onebert_store.file.changes import Kind
from onebert_store.file.fields import Line
from onebert_store.file.manifest import Manifest


class AliasRequest(RequestBody):
    """Where an alias shall point."""

    version: Annotated[int, Field(ge=1, lt=2**31)]
    force: Annotated[bool, Field(description="whether the alias moves past the task's gate")] = False
    message: Annotated[Line | None, Field(description="why it is forced, for the audit trail")] = None
    report: Annotated[
        Report | None, Field(description="numbers of the gate's rows, if the server does not keep them")
    ] = None

    @model_validator(mode="after")
    def _says_why(self) -> "AliasRequest":
        if self.force != (self.message is not None):
            raise ValueError("force takes a message, and a message is for force alone")
        return self


class GateRequest(RequestBody):
    """A task's gate, and the pinned rows if the server shall keep them."""

    rules: Gate
    rows: list[PinnedRow] = Field(default_factory=list, max_length=MAX_ROWS)


class RenameRequest(RequestBody):
    """What a task shall be called."""

    name: Annotated[str, Field(json_schema_extra={"pattern": NAME})]


class VersionResponse(VersionFacts, frozen=True, kw_only=True):
    """One version with its manifest."""

    manifest: Manifest  # type: ignore[assignment]  # a client reads it as a dict


class ChangeResponse(BaseModel):
    """What a version changes in one parameter or module of the base."""

    name: Annotated[str, Field(description="of the parameter or module, as Hugging Face names it")]
    symbol: Annotated[str, Field(description="what the papers call it; `name` where they do not")]
    layer: Annotated[int | None, Field(description="null outside of the layers")]
    kind: Annotated[Kind, Field(description="what is added: a vector, a low-rank matrix, single weights, …")]
    norm: Annotated[float, Field(description="length (L2) of what is added; of a scale, of its distance from one")]
    rms: Annotated[float, Field(description="root mean square of the same numbers")]


class ChangesResponse(BaseModel):
    """What a version changes in the base, or beyond what another one changes."""

    task: str
    version: int
    digest: str
    against: Annotated[int | None, Field(description="the version that it is compared with; null: the bare base")]
    changes: list[ChangeResponse]
