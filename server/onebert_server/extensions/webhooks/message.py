"""One webhook: its body, and the header fields that sign it by the Standard Webhooks specification, version 1.0.0."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onebert_server.contract.declared import as_dict
from onebert_server.http.schemas.administration import change_of
from onebert_server.http.schemas.tasks import facts_of
from onebert_store.file import strict_json
from onebert_store.registry.records import Action, Change


@dataclass(frozen=True)
class WebhookMessage:
    """An event; `id` stays the same in every attempt, so that a receiver can drop doubles."""

    id: str
    type: str
    at: datetime
    data: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        return strict_json.encode({"type": self.type, "timestamp": self.at.isoformat(), "data": self.data}).encode()


def signed(message: WebhookMessage, secret: bytes, now: int) -> dict[str, str]:
    """Returns the header fields of an attempt at `now`, in seconds since 1970."""
    content = b"%s.%d.%s" % (message.id.encode(), now, message.body)
    signature = base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
    headers = {"webhook-id": message.id, "webhook-timestamp": str(now), "webhook-signature": f"v1,{signature}"}
    return headers | {"content-type": "application/json"}


def message_of(change: Change) -> WebhookMessage | None:
    """The webhook of a change of aliases, versions or tasks; None for other changes, an upload that moves no alias too.

    Its id has the time, too: an older registry that was restored uses the numbers of lost changes again.
    """
    kind = _TYPES.get(change.action)
    if kind is None or (change.action == Action.UPLOAD and change.alias is None):
        return None
    # Fields without a value are null in webhooks.
    target = change.target and {"sticky": None, "shadow": None, **as_dict(facts_of(change.target))}
    shown = change_of(change)
    fields = {name: getattr(shown, name) for name in _FIELDS}
    data = {"change": change.seq, **fields, "target": target}
    return WebhookMessage(f"change-{change.seq}-{change.at.timestamp():.0f}", kind, change.at, data)


_FIELDS = ("task", "alias", "before", "version", "principal", "what", "reason", "past_gate", "failed")
_TYPES: Mapping[str, str] = {
    Action.UPLOAD: "alias.moved",
    Action.PROMOTE: "alias.moved",
    Action.ROLL_BACK: "alias.moved",
    Action.DELETE_ALIAS: "alias.deleted",
    Action.DELETE_VERSION: "version.deleted",
    Action.DELETE_TASK: "task.deleted",
}
