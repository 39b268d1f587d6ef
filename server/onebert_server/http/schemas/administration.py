"""The body of a new key."""

from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator, Field

from onebert_server.contract.administration import Key


def _written_out(value: Any) -> Any:
    # Pydantic would accept a number as seconds since 1970, which is undocumented.
    if not isinstance(value, str) or "T" not in value:
        raise ValueError("must be a time as 2026-01-31T12:00:00Z")
    return value


Time = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written_out)]


class KeyRequest(Key, frozen=True, kw_only=True):
    """A key that shall be made."""

    expires_at: Time | None = None
