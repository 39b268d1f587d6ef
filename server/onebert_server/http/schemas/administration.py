"""The body of a new key, and a change as clients read it."""

from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator, Field

from onebert_server.contract.administration import Change, Key
from onebert_server.contract.moves import words
from onebert_server.http.schemas.tasks import rollout_of
from onebert_store.registry import records


def _written_out(value: Any) -> Any:
    # Pydantic would accept a number as seconds since 1970, which is undocumented.
    if not isinstance(value, str) or "T" not in value:
        raise ValueError("must be a time as 2026-01-31T12:00:00Z")
    return value


Time = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written_out)]


class KeyRequest(Key, frozen=True, kw_only=True):
    """A key that shall be made."""

    expires_at: Time | None = None


# How the reason of a verdict of an earlier release begins.
VERDICT = "verdict on "


def change_of(record: records.Change) -> Change:
    """A change of the registry as clients read it."""
    fields = {name: getattr(record, name) for name in Change.__struct_fields__ if hasattr(record, name)}
    # A verdict of an earlier release has its reason in place of a request.
    reason = record.message or (record.request if record.request.startswith(VERDICT) else None)
    target = record.target and rollout_of(record.target)
    return Change(**fields | {"target": target, "what": what_of(record), "reason": reason})


def what_of(record: records.Change) -> str:
    """Words a change; empty if its action and its task say everything."""
    if record.alias:
        before, after = (each and rollout_of(each) for each in (record.before_target, record.target))
        return words(before, after, record.before, record.version, record.rolled_back)
    if record.key or record.name:
        return record.key or f"renamed to {record.name}"
    return f"version {record.version}" if record.version else ""
