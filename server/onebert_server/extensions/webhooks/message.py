"""One webhook: its body, and the header fields that sign it by the Standard Webhooks specification, version 1.0.0."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onebert_server.contract.declared import as_dict
from onebert_server.http.schemas.tasks import facts_of
from onebert_store.file import strict_json
from onebert_store.registry.records import Action, Change


@dataclass(frozen=True)
class Message:
    """An event; `id` stays the same in every attempt, so that a receiver can drop doubles."""

    id: str
    type: str
    at: datetime
    data: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        return strict_json.encode({"type": self.type, "timestamp": self.at.isoformat(), "data": self.data}).encode()


def signed(message: Message, secret: bytes, now: int) -> dict[str, str]:
    """Returns the header fields of an attempt at `now`, in seconds since 1970."""
    content = b"%s.%d.%s" % (message.id.encode(), now, message.body)
    signature = base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
    headers = {"webhook-id": message.id, "webhook-timestamp": str(now), "webhook-signature": f"v1,{signature}"}
    return headers | {"content-type": "application/json"}


def move_of(change: Change) -> Message | None:
    """The webhook of a change that gave an alias a meaning, a task's first upload included; None for other changes.

    Its id has the time, too: an older registry that was restored uses the numbers of lost changes again.
    """
    if change.alias is None or change.action not in (Action.PROMOTE, Action.UPLOAD):
        return None
    names = ("task", "alias", "before", "version", "principal", "forced")
    data = {"change": change.seq} | {name: getattr(change, name) for name in names}
    # Fields without a value are null in webhooks.
    target = change.target and {"sticky": None, "shadow": None, **as_dict(facts_of(change.target))}
    number = f"change-{change.seq}-{change.at.timestamp():.0f}"
    return Message(number, "alias.moved", change.at, data | {"target": target})
