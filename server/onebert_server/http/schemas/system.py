"""The server itself: the caller, health, and problems."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

from onebert_store.registry.grants import Scope


class WhoResponse(BaseModel):
    """The principal of a request, and its permissions."""

    principal: Annotated[str, Field(description="`key:` and the key's name, or without keys the client's address")]
    scopes: Annotated[list[Scope], Field(description="what it may do")]
    tasks: Annotated[list[str], Field(description="with which tasks, as globs")]
    default_task: Annotated[str | None, Field(description="what an item without `task` means")]


class Health(BaseModel):
    """Whether the server lives or is ready; no names, since it is open to all."""

    status: Literal["alive", "started", "ready"]
    tasks: int | None = None
    versions: int | None = None
    resident: Annotated[int | None, Field(description="versions in memory")] = None
    unavailable: Annotated[int | None, Field(description="versions that cannot be loaded")] = None
    damaged: Annotated[int | None, Field(description="versions whose stored file was found damaged")] = None
    storage: Annotated[
        str | None,
        Field(
            description="ok, or the code of the error with which the disk refused the last change, or with which the"
            " registry cannot be read"
        ),
    ] = None
    seq: Annotated[int | None, Field(description="the registry's last change that is shown here")] = None
    age: Annotated[float | None, Field(description="seconds since the registry was last looked at")] = None


class Reason(BaseModel):
    """One broken rule."""

    path: str
    reason: str


class Problem(BaseModel):
    """RFC 9457; `code` is from the table in docs/reference/errors.md."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    errors: list[Reason] | None = None
    report: Annotated[dict[str, JsonValue] | None, Field(description="of `gate-failed`: each check")] = None
