"""What an admin can ask: keys and the audit trail."""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

from onebert_server.client.exchange import Asking, Request, Steps, asked, decode, quoted, with_json
from onebert_server.client.results import UNLIMITED, Change, ChangePage, KeyFacts, KeyList, KeyQuotas, MadeKey, as_dict


class AdminCalls(Asking):
    """The methods of who administers all tasks."""

    @asked
    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        tasks: Sequence[str],
        default_task: str | None = None,
        quotas: KeyQuotas = UNLIMITED,
        expires_at: datetime | None = None,
    ) -> Steps[MadeKey]:
        """Makes a key, in force at once on the server that answers and within five seconds on the others.

        Args:
            name: whose it is; keys of one name are one principal.
            scopes: what it is for, of `classify`, `upload`, `promote` and `admin`.
            tasks: for which tasks, as globs.
            default_task: what a request means that names no task.
            quotas: how much it allows.
            expires_at: until when, with its time zone; None is for ever.

        Returns:
            What was made, with the key itself, which nothing else will ever give.

        Raises:
            InvalidInput: it breaks a rule.
            Forbidden: this client's own key is not for administering all tasks; so for all methods about keys.
        """
        body = {
            "name": name,
            "scopes": list(scopes),
            "tasks": list(tasks),
            "default_task": default_task,
            "quotas": as_dict(quotas),
            "expires_at": expires_at and expires_at.isoformat(),
        }
        # Never sent again, since a key that was made but not heard of would be one that nobody holds.
        return decode((yield from self._ask(with_json("POST", "/v1/keys", body, repeatable=False))), MadeKey)

    @asked
    def keys(self) -> Steps[list[KeyFacts]]:
        """Every key that was made, the oldest first; none of them itself."""
        return (yield from self._get("/v1/keys", KeyList)).keys

    @asked
    def revoke_key(self, key_id: str) -> Steps[None]:
        """Revokes a key for good: at once on the server that answers, within five seconds on the others.

        Raises:
            KeyNotFound: there is no key of this id.
        """
        # One that is revoked already stays so, and this may be sent again.
        yield from self._ask(Request("DELETE", f"/v1/keys/{quoted(key_id)}"))

    @asked
    def audit(
        self,
        after: int = 0,
        most: int = 1000,
        task: str | None = None,
        principal: str | None = None,
        since: datetime | None = None,
    ) -> Steps[list[Change]]:
        """What was changed, the oldest change first: as many changes as are asked for, and fewer only at the end.

        Args:
            after: the `seq` of the last change of the page before.
            most: how many, at most 1000.
            task: changes of this task alone.
            principal: changes that this principal made, as `key:ci`.
            since: changes from then on, with its time zone.

        Raises:
            Forbidden: this client's own key is not for administering all tasks.
        """
        given = {"task": task, "principal": principal, "since": since and since.isoformat()}
        filters = {name: value for name, value in given.items() if value is not None}
        query = urlencode({"after": after, "limit": most, **filters})
        return (yield from self._get(f"/v1/audit?{query}", ChangePage)).changes
