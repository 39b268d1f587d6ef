"""The feed: every change of a registry under its number, for replicas to follow and for people to read.

A change is written in the transaction that makes it. Its number comes from one row that each such transaction holds
until its commit, so that the order of the numbers is the order of the commits, on every database: whoever has read up
to a number has read everything that was committed before it.
"""

import sys
from collections import defaultdict
from collections.abc import Collection
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, Row, and_, func, insert, or_, select, true, update

from onebert_store.errors import InvalidInput
from onebert_store.file.manifest import Manifest
from onebert_store.file.strict_json import shown
from onebert_store.registry.database import ALIASES, CHANGES, FEED, VERSIONS, reading
from onebert_store.registry.dialects.protocol import Database, Listener
from onebert_store.registry.names import check_name
from onebert_store.registry.queries import version_entries
from onebert_store.registry.records import Action, Actor, Alias, Change, Place, Snapshot, VersionEntry

MANIFESTS_TOGETHER = 4 * 2**20
"""Characters of the manifests that are read at once; a single manifest has 2^20 at most, and is read whole."""

# Times beyond these would leave what a database keeps when they are taken to UTC.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_UPLOADED = and_(
    CHANGES.c.action == Action.UPLOAD, VERSIONS.c.task == CHANGES.c.task, VERSIONS.c.version == CHANGES.c.version
)
_COLUMNS = [*CHANGES.columns, *(VERSIONS.c[name] for name in ("digest", "size", "created_at", "manifest"))]


class Feed:
    """What was changed in a store; thread-safe.

    Every method raises StorageUnavailable where the database refuses to work.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def last(self) -> Place:
        """The last change."""
        with reading(self._database) as connection:
            return _last_place(connection)

    def read(self, after: int, most: int, at: datetime | None = None) -> list[Change]:
        """The first changes whose numbers are above `after`, in their order; one at least where there is one.

        What they say of uploaded versions is as of one moment, which may be later than the last of them.

        Args:
            after: 0 begins with the first.
            most: how many at most; fewer come where manifests are large, so that a reader who was away for long needs
                neither memory nor time for many of these at once.
            at: when the change `after` was made, where the reader knows that; where it was made at another time it is
                another change than the reader's, and nothing is given.
        """
        joined = CHANGES.outerjoin(VERSIONS, _UPLOADED)
        with reading(self._database) as connection:
            if at is not None and _time_of(connection, after) != at:
                return []
            sizes = select(CHANGES.c.seq, func.coalesce(func.length(VERSIONS.c.manifest), 0)).select_from(joined)
            page = sizes.where(CHANGES.c.seq > after).order_by(CHANGES.c.seq).limit(most)
            until, total = after, 0
            for seq, size in connection.execute(page):
                total += size
                if until > after and total > MANIFESTS_TOGETHER:
                    break
                until = seq
            found = select(*_COLUMNS).select_from(joined).where(CHANGES.c.seq > after, CHANGES.c.seq <= until)
            rows = connection.execute(found.order_by(CHANGES.c.seq)).all()
        return [_change(row, _entry(row)) for row in rows]

    def audit(
        self,
        after: int,
        most: int,
        task: str | None = None,
        principal: str | None = None,
        since: datetime | None = None,
    ) -> list[Change]:
        """The first `most` changes whose numbers are above `after`, in their order, without their entries.

        Args:
            after: 0 begins with the first.
            most: how many at most.
            task: changes of this task alone, among them that a task was renamed to it.
            principal: changes by this principal alone.
            since: changes from then on alone.

        Raises:
            InvalidInput: that is the name of no task, or of no principal.
        """
        if task is not None:
            check_name(task)
        # PostgreSQL takes no text with a zero byte, and no database half a surrogate pair.
        if principal is not None and not principal.isprintable():
            raise InvalidInput(f"'{shown(principal)}' is not the name of a principal")
        found = select(CHANGES).where(CHANGES.c.seq > after).order_by(CHANGES.c.seq).limit(most)
        if task is not None:
            found = found.where(or_(CHANGES.c.task == task, CHANGES.c.name == task))
        if principal is not None:
            found = found.where(CHANGES.c.principal == principal)
        if since is not None:
            found = found.where(CHANGES.c.at >= min(max(since, _FIRST), _LAST))
        with reading(self._database) as connection:
            return [_change(row, None) for row in connection.execute(found)]

    def listening(self) -> AbstractContextManager[Listener | None]:
        """What hears of changes while the block runs; None where the database tells of none.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        return self._database.listening()

    def write(
        self,
        connection: Connection,
        by: Actor,
        action: Action,
        task: str | None = None,
        version: int | None = None,
        alias: str | None = None,
        before: int | None = None,
        key: str | None = None,
        name: str | None = None,
    ) -> int:
        """Writes what a transaction changes, and returns its number; see Change.

        To be called last: all other changes wait from here on until the commit.
        """
        counted = update(FEED).values(last=FEED.c.last + 1)
        seq: int = connection.execute(counted.returning(FEED.c.last)).scalar_one()
        what = {"action": action, "task": task, "version": version, "alias": alias, "before": before}
        who = {"principal": by.principal, "request": by.request}
        row = {"seq": seq, "at": datetime.now(UTC), **what, **who, "key": key, "name": name}
        connection.execute(insert(CHANGES).values(row))
        self._database.announce(connection)
        return seq

    def task(self, name: str, numbers: Collection[int] | None = None) -> tuple[list[VersionEntry], dict[str, Alias]]:
        """Versions that a task has now, by number and without manifests, and its aliases.

        Args:
            name: of the task; one that is not there has neither.
            numbers: which versions, and those that aliases point at; None is all, as of a task without aliases.
        """
        with reading(self._database) as connection:
            found = select(ALIASES).where(ALIASES.c.task == name)
            aliases = {row.alias: Alias(row.version, row.previous) for row in connection.execute(found)}
            wanted = {*(numbers or ()), *(at.version for at in aliases.values())}
            some = true() if numbers is None or not aliases else VERSIONS.c.version.in_(wanted)
            return version_entries(connection, VERSIONS.c.task == name, some), aliases

    def snapshot(self) -> Snapshot:
        """Everything that is registered, and up to which change."""
        aliases: dict[str, dict[str, Alias]] = defaultdict(dict)
        # Most of a million are `live` at version 1, and one object.
        places: dict[tuple[int, int | None], Alias] = {}
        with reading(self._database) as connection:
            last = _last_place(connection)
            for task, alias, version, previous in connection.execute(select(ALIASES)):
                place = version, previous
                aliases[task][sys.intern(alias)] = places.get(place) or places.setdefault(place, Alias(*place))
            return Snapshot(last, version_entries(connection), aliases)


def last_change(connection: Connection) -> int:
    """The number of the last change, for a transaction that reads."""
    seq: int = connection.execute(select(FEED.c.last)).scalar_one()
    return seq


def _last_place(connection: Connection) -> Place:
    seq = last_change(connection)
    return Place(seq, _time_of(connection, seq))


def _time_of(connection: Connection, seq: int) -> datetime | None:
    return connection.scalar(select(CHANGES.c.at).where(CHANGES.c.seq == seq))


def _change(row: Row[tuple[Any, ...]], entry: VersionEntry | None) -> Change:
    what = row.action, row.task, row.version, row.alias, row.before
    return Change(row.seq, row.at, *what, row.principal, row.request, entry, row.key, row.name)


def _entry(row: Row[tuple[Any, ...]]) -> VersionEntry | None:
    if row.digest is None:
        return None
    entry = VersionEntry(row.task, row.version, row.digest, row.size, row.created_at)
    try:
        return entry.with_manifest(Manifest.model_validate_json(row.manifest))
    except ValidationError:
        return entry
