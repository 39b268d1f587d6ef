"""Tasks, versions and aliases."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from onebert_server.http.schemas.common import NAME, RequestBody
from onebert_store.file.changes import Kind
from onebert_store.file.manifest import Manifest


class AliasRequest(RequestBody):
    """Where an alias shall point."""

    version: Annotated[int, Field(ge=1, lt=2**31)]


class RenameRequest(RequestBody):
    """What a task shall be called."""

    name: Annotated[str, Field(json_schema_extra={"pattern": NAME})]


class Uploaded(BaseModel):
    """The version that holds an uploaded delta."""

    task: str
    version: int
    digest: str


Previous = Annotated[int, Field(description="where the alias pointed before; that version may be deleted by now")]


class AliasResponse(BaseModel):
    """Where an alias points."""

    task: str
    alias: str
    version: int
    previous: Previous | None


class VersionSummary(BaseModel):
    """One version of a task, and how far it is in this server's memory."""

    version: int
    digest: str
    status: Annotated[
        Literal["registered", "loading", "resident", "evicted", "unavailable"],
        Field(description="resident answers at once, unavailable not at all; others are loaded when asked for"),
    ]
    reason: Annotated[str | None, Field(description="why it is unavailable, or what is wrong with its stored file")] = (
        None
    )
    retry_in: Annotated[float | None, Field(description="seconds until an unavailable one is tried again")] = None
    size: Annotated[int, Field(description="bytes of the delta file")]
    created_at: datetime
    method: Annotated[str | None, Field(description="this and what follows: null where no manifest can be read")]
    task_type: str | None
    labels: int | None


class VersionResponse(VersionSummary):
    """One version with its manifest."""

    task: str
    manifest: Manifest


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


class _Task(BaseModel):
    name: str
    aliases: dict[str, int]
    previous: dict[str, Previous]


class TaskSummary(_Task):
    """A task, its version numbers, where its aliases point, and where those that were moved pointed before."""

    versions: list[int]


class TasksResponse(BaseModel):
    """A page of the tasks, by name."""

    tasks: list[TaskSummary]
    next: Annotated[str | None, Field(description="what `after` must be for the next page; null on the last one")]


class TaskResponse(_Task):
    """A task, its aliases as in the list of tasks, and a page of its versions, oldest first."""

    versions: list[VersionSummary]
    next: Annotated[int | None, Field(description="what `after` must be for the next page; null on the last one")]
