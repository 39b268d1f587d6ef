"""What an admin can ask a server, once for both clients: keys and the audit trail."""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

from onebert_server.client.calls import quoted, with_json
from onebert_server.client.exchange import Request, Steps, decode, exchange
from onebert_server.client.results import Change, ChangePage, KeyFacts, KeyList, KeyQuotas, MadeKey, as_dict


def create_key(
    name: str,
    scopes: Sequence[str],
    tasks: Sequence[str],
    default_task: str | None,
    quotas: KeyQuotas,
    expires_at: datetime | None,
    timeout: float,
) -> Steps[MadeKey]:
    """Makes a key; never sent again, since a key that was made but not heard of would be one that nobody holds."""
    body = {
        "name": name,
        "scopes": list(scopes),
        "tasks": list(tasks),
        "default_task": default_task,
        "quotas": as_dict(quotas),
        "expires_at": expires_at and expires_at.isoformat(),
    }
    return decode((yield from exchange(with_json("POST", "/v1/keys", body, repeatable=False), timeout)), MadeKey)


def keys(timeout: float) -> Steps[list[KeyFacts]]:
    """Every key."""
    return decode((yield from exchange(Request("GET", "/v1/keys"), timeout)), KeyList).keys


def revoke_key(key_id: str, timeout: float) -> Steps[None]:
    """Revokes a key; one that is revoked already stays so, and this may be sent again."""
    yield from exchange(Request("DELETE", f"/v1/keys/{quoted(key_id)}"), timeout)


def audit(
    after: int, most: int, task: str | None, principal: str | None, since: datetime | None, timeout: float
) -> Steps[list[Change]]:
    """A page of the audit trail."""
    given = {"task": task, "principal": principal, "since": since and since.isoformat()}
    asked = {name: value for name, value in given.items() if value is not None}
    query = urlencode({"after": after, "limit": most, **asked})
    return decode((yield from exchange(Request("GET", f"/v1/audit?{query}"), timeout)), ChangePage).changes
