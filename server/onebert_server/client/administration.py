"""Client methods for administrators: keys and the audit trail."""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

from onebert_server.client.exchange import SentQuestions, quoted
from onebert_server.contract.administration import (
    UNLIMITED,
    AuditResponse,
    Change,
    KeyFacts,
    KeyQuotas,
    KeysResponse,
    MadeKey,
)
from onebert_server.contract.declared import as_dict


class AdminCalls(SentQuestions):
    """The methods for administrators of all tasks."""

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        tasks: Sequence[str],
        default_task: str | None = None,
        quotas: KeyQuotas = UNLIMITED,
        expires_at: datetime | None = None,
    ) -> MadeKey:
        """Makes a key. It works at once on the server that replies, and within five seconds on the others.

        Args:
            name: the principal; keys with one name share it.
            scopes: of `classify`, `upload`, `promote`, `feedback`, `review` and `admin`.
            tasks: globs.
            default_task: for requests that name no task.
            expires_at: with a time zone; None means never.

        Returns:
            The key with its secret, which no other call returns.

        Raises:
            Forbidden: this client's own key may not administer all tasks; applies to all methods here.
        """
        body = {
            "name": name,
            "scopes": list(scopes),
            "tasks": list(tasks),
            "default_task": default_task,
            "quotas": as_dict(quotas),
            "expires_at": expires_at and expires_at.isoformat(),
        }
        # Not repeatable: if the reply got lost, a repetition would leave a key whose secret nobody has.
        return await self._decoded(MadeKey, "POST", "/v1/keys", body, repeatable=False)

    async def keys(self) -> list[KeyFacts]:
        """Every key ever made, oldest first, without secrets."""
        return [key async for page in self._pages(KeysResponse, "/v1/keys") for key in page.keys]

    async def revoke_key(self, key_id: str) -> None:
        """Revokes a key for good: at once on the server that replies, within five seconds on the others."""
        # Repeatable: revoking a revoked key changes nothing.
        await self._ask("DELETE", f"/v1/keys/{quoted(key_id)}")

    async def audit(
        self,
        after: int = 0,
        most: int = 1000,
        task: str | None = None,
        principal: str | None = None,
        since: datetime | None = None,
    ) -> list[Change]:
        """Returns a page of the audit trail, oldest change first; a page with fewer than `most` changes is the last.

        Args:
            after: the `seq` of the last change on the previous page.
            most: at most 1000.
            principal: for example `key:ci`.
            since: with a time zone.
        """
        params = {"task": task, "principal": principal, "since": since and since.isoformat()}
        filters = {name: value for name, value in params.items() if value is not None}
        query = urlencode({"after": after, "limit": most, **filters})
        return (await self._decoded(AuditResponse, "GET", f"/v1/audit?{query}")).changes
