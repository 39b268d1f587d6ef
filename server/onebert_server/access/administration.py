"""Operations on the whole server: keys and the audit trail."""

from contextlib import suppress
from datetime import datetime

from onebert_server.access.context import Context
from onebert_server.access.key_keeper import KeyKeeper
from onebert_server.access.principal import Action
from onebert_store.errors import OneBertError
from onebert_store.registry.grants import Grant, KeyRecord
from onebert_store.registry.records import Change
from onebert_store.registry.registry import Registry


class Administration:
    """Checks the principal's rights, then asks the registry; all methods block.

    Only an admin of all tasks may call them: an admin of some tasks could otherwise make itself a key for others.
    """

    def __init__(self, registry: Registry, keeper: KeyKeeper) -> None:
        self._registry = registry
        self._keeper = keeper

    def keys(self, context: Context) -> list[KeyRecord]:
        context.principal.require_all(Action.ADMINISTER)
        return self._registry.keys.all()

    def create_key(self, context: Context, grant: Grant, expires_at: datetime | None) -> tuple[KeyRecord, str]:
        """Makes a key, valid here at once if the registry can be read; see `Keys.create`."""
        context.principal.require_all(Action.ADMINISTER)
        made = self._registry.keys.create(grant, expires_at, context.actor)
        # The key exists, and its secret is shown only this once, so a failing registry must not hide it. The key
        # becomes valid here later.
        with suppress(OneBertError):
            self._keeper.look()
        return made

    def revoke_key(self, context: Context, key_id: str) -> KeyRecord:
        """Revokes a key, effective here at once; see `Keys.revoke`."""
        context.principal.require_all(Action.ADMINISTER)
        revoked = self._registry.keys.revoke(key_id, context.actor)
        self._keeper.look()
        return revoked

    def audit(
        self,
        context: Context,
        most: int,
        after: int = 0,
        task: str | None = None,
        principal: str | None = None,
        since: datetime | None = None,
    ) -> list[Change]:
        """Returns the first `most` changes behind number `after`; see `Feed.audit`."""
        context.principal.require_all(Action.ADMINISTER)
        return self._registry.feed.audit(after, most, task, principal, since)
