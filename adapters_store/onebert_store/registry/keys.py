"""The registry's keys: one row with the SHA-256 of each key; rows are added and revoked, never removed."""

import hashlib
import re
import secrets
from dataclasses import asdict
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection, Row, and_, func, insert, or_, select, update

from onebert_store.errors import KeyNotFound, NoAdmin
from onebert_store.file.strict_json import printable
from onebert_store.registry.database import KEYS
from onebert_store.registry.dialects.database import Database
from onebert_store.registry.feed import Feed
from onebert_store.registry.grants import Grant, KeyRecord, Quotas, Scope, check_grant
from onebert_store.registry.records import CLI, Action, Actor

# Prefix of every key, so that secret scanners recognize one.
PREFIX = "onebert_"
_SECRET_BYTES = 32
_ID_DIGITS = 12
_ID = re.compile(rf"[0-9a-f]{{{_ID_DIGITS}}}")


class KeysMark(NamedTuple):
    """Number of keys created and revoked, and the latest time of each."""

    created: int
    revoked: int
    last_created: datetime | None
    last_revoked: datetime | None


class Keys:
    """The keys of one store; thread-safe. Every method raises StorageUnavailable if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._feed = Feed(database)

    def create(
        self, grant: Grant, expires_at: datetime | None = None, by: Actor = CLI, *, keep_admin: bool = False
    ) -> tuple[KeyRecord, str]:
        """Makes a key and returns its record and the key itself, which is not stored.

        Raises NoAdmin with `keep_admin`, if neither this key nor a valid earlier one administers.
        """
        check_grant(grant, expires_at)
        key = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        digest = hashlib.sha256(key.encode()).digest()
        record = KeyRecord(digest.hex()[:_ID_DIGITS], digest, grant, datetime.now(UTC), expires_at)
        with self._database.writing(by.until) as connection:
            # A key without `admin` is refused although one with it is made at the same moment: it does not see it.
            if keep_admin and not grant.administers and not _has_admin(connection):
                raise NoAdmin(
                    "this first key would end access without a key, and nobody could make others: first make one with "
                    "the scope admin for '*' (onebert keys create --name admin --scope admin --tasks '*'), or run "
                    "`onebert keys create` on the server's host"
                )
            connection.execute(insert(KEYS).values(**_row(record)))
            self._feed.write(connection, by, Action.MINT_KEY, key=_label(record))
        return record, key

    def revoke(self, key_id: str, by: Actor = CLI) -> KeyRecord:
        """Revokes a key for good; a revoked key stays as it is. Raises KeyNotFound for an unknown id."""
        if not _ID.fullmatch(key_id):
            raise _no_such_key(key_id)
        wanted = KEYS.c.id == key_id
        with self._database.writing(by.until) as connection:
            gone = update(KEYS).where(wanted, KEYS.c.revoked_at.is_(None)).values(revoked_at=datetime.now(UTC))
            revoked = connection.execute(gone).rowcount
            row = connection.execute(select(KEYS).where(wanted)).first()
            if row is None:
                raise _no_such_key(key_id)
            if revoked:
                self._feed.write(connection, by, Action.REVOKE_KEY, key=_label(_record(row)))
        return _record(row)

    def all(self) -> list[KeyRecord]:
        with self._database.reading() as connection:
            return [_record(row) for row in connection.execute(select(KEYS).order_by(KEYS.c.created_at, KEYS.c.id))]

    def page(self, after: str, limit: int) -> list[KeyRecord]:
        """Returns keys, the oldest first, after the one with the id `after`."""
        created, id = KEYS.c.created_at, KEYS.c.id
        query = select(KEYS).order_by(created, id).limit(limit)
        with self._database.reading() as connection:
            last = connection.execute(select(created).where(id == after)).scalar()
            if last is not None:
                query = query.where(or_(created > last, and_(created == last, id > after)))
            return [_record(row) for row in connection.execute(query)]

    def mark(self) -> KeysMark:
        """Returns a mark that changes exactly when the result of `all` changes, also to a restored older one."""
        created, revoked = KEYS.c.created_at, KEYS.c.revoked_at
        marks = select(func.count(created), func.count(revoked), func.max(created), func.max(revoked))
        with self._database.reading() as connection:
            return KeysMark(*connection.execute(marks).one())


def _has_admin(connection: Connection) -> bool:
    now = datetime.now(UTC)
    records = map(_record, connection.execute(select(KEYS).where(KEYS.c.revoked_at.is_(None))))
    return any(record.grant.administers and record.state(now) == "valid" for record in records)


def _no_such_key(key_id: str) -> KeyNotFound:
    return KeyNotFound(f"there is no key {printable(key_id)}")


def _label(record: KeyRecord) -> str:
    return f"{record.grant.name}/{record.id}"


def _row(record: KeyRecord) -> dict[str, object]:
    grant = record.grant
    quotas = {f"most_{name}": limit for name, limit in asdict(grant.quotas).items()}
    lists = {"scopes": " ".join(sorted(grant.scopes)), "tasks": " ".join(grant.tasks)}
    values = {**vars(grant), **vars(record), **lists, **quotas, "digest": record.digest.hex()}
    return {column.name: values[column.name] for column in KEYS.columns}


def _record(row: Row[tuple[object, ...]]) -> KeyRecord:
    quotas = Quotas(row.most_tasks, row.most_bytes, row.most_requests, row.most_tokens)
    scopes = frozenset(map(Scope, row.scopes.split()))
    grant = Grant(row.name, scopes, tuple(row.tasks.split()), row.default_task, quotas)
    return KeyRecord(row.id, bytes.fromhex(row.digest), grant, row.created_at, row.expires_at, row.revoked_at)
