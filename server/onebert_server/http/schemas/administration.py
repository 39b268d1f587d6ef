"""Keys and the audit trail."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from onebert_server.http.schemas.common import GLOB, NAME, Ref, RequestBody
from onebert_store.registry.grants import MAX_GLOBS


def _written_out(value: Any) -> Any:
    # Pydantic would accept a number as seconds since 1970, which is undocumented.
    if not isinstance(value, str) or "T" not in value:
        raise ValueError("must be a time as 2026-01-31T12:00:00Z")
    return value


Time = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written_out)]
Glob = Annotated[str, Field(json_schema_extra={"pattern": GLOB})]


class KeyQuotas(RequestBody):
    """How much a key allows; null is as much as it likes."""

    tasks: Annotated[int | None, Field(ge=1, lt=2**53, description="tasks that hold versions uploaded with it")] = None
    bytes: Annotated[int | None, Field(ge=1, lt=2**53, description="sizes of those versions together")] = None
    requests: Annotated[float | None, Field(gt=0, lt=2**53, description="a second, of each replica")] = None
    tokens: Annotated[float | None, Field(gt=0, lt=2**53, description="computed in a second, of each replica")] = None


class _Key(RequestBody):
    name: Annotated[str, Field(json_schema_extra={"pattern": NAME}, description="keys of one name are one principal")]
    scopes: Annotated[list[Literal["classify", "upload", "promote", "admin"]], Field(min_length=1, max_length=4)]
    tasks: Annotated[list[Glob], Field(min_length=1, max_length=MAX_GLOBS, description="globs, as `acme-*`")]
    default_task: Annotated[Ref | None, Field(description="what a request means that names no task")] = None
    quotas: KeyQuotas = KeyQuotas()


class KeyRequest(_Key):
    """A key that shall be made."""

    expires_at: Time | None = None


class KeyResponse(_Key):
    """A key, without the key itself."""

    id: Annotated[str, Field(description="what it is revoked by; the first digits of its SHA-256")]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    state: Literal["valid", "expired", "revoked"]


class MadeKey(KeyResponse):
    """A key that was made, and the one answer that has it."""

    key: str


class KeysResponse(BaseModel):
    """Every key that was made, the oldest first."""

    keys: list[KeyResponse]


class Changed(BaseModel):
    """One row of the audit trail; which fields there are depends on the action."""

    model_config = ConfigDict(from_attributes=True)

    seq: int
    at: datetime
    action: str
    task: str | None
    alias: str | None
    before: Annotated[int | None, Field(description="the version where the alias was before")]
    version: int | None
    key: Annotated[str | None, Field(description="name and id of a key that was made or revoked")]
    name: Annotated[str | None, Field(description="what a renamed task is called since")]
    principal: Annotated[str, Field(description="who made the change")]
    request: Annotated[str, Field(description="the id of the request by which it was made")]
    rolled_back: Annotated[bool, Field(description="whether an alias was moved to an older version")]


class AuditResponse(BaseModel):
    """A page of the audit trail, the oldest change first."""

    changes: list[Changed]
    next: Annotated[int | None, Field(description="what `after` must be for the next page; null on the last one")]
