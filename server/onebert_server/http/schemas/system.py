"""The server itself: the caller, and health."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

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
    storage: Annotated[
        str | None,
        Field(
            description="ok, or the code of the error with which the disk refused the last change, or with which the"
            " registry cannot be read"
        ),
    ] = None
    seq: Annotated[int | None, Field(description="the registry's last change that is shown here")] = None
    age: Annotated[float | None, Field(description="seconds since the registry was last looked at")] = None
