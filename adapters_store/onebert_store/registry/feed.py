"""The feed: the numbered changes of a registry, which replicas follow and people audit.

The transaction that makes a change also writes it to the feed. It takes the number from one row and holds that row
until its commit, so numbers follow the order of the commits on every database. A reader that has read up to a number
has read everything committed before it.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select, true, update

from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import printable
from onebert_store.registry.database import ALIASES, CHANGES, FEED, KEEPINGS, VERSIONS
from onebert_store.registry.dialects.database import Database, Listener
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.names import check_name
from onebert_store.registry.queries import aliases_of, entry_of, version_entries
from onebert_store.registry.records import Action, Actor, Alias, Change, Place, Snapshot, VersionEntry, alias_of
from onebert_store.registry.target import Target

# Characters of manifests that one read returns at most; one manifest (up to 2^20) is always read whole.
MANIFESTS_TOGETHER = 4 * 2**20

# Times beyond these leave the range of the database's type when they are converted to UTC.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_UPLOADED = and_(
    CHANGES.c.action == Action.UPLOAD, VERSIONS.c.task == CHANGES.c.task, VERSIONS.c.version == CHANGES.c.version
)
# Changes that free the name of a task.
_ENDS = CHANGES.c.action.in_((Action.DELETE_TASK, Action.RENAME_TASK))
_COLUMNS = [*CHANGES.columns, *(VERSIONS.c[name] for name in ("digest", "size", "created_at", "manifest"))]


class Feed:
    """The changes of a store; thread-safe. Every method raises StorageUnavailable if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last(self) -> Place:
        with self._database.reading() as connection:
            return _last_place(connection)

    def read(self, after: int, limit: int, at: datetime | None = None) -> list[Change]:
        """Returns the first changes above number `after` (0: from the start), in order; at least one if there is any.

        The versions in them are read at one moment, which may be later than the last of these changes. At most `limit`
        changes come, fewer if manifests are large, so that a reader that was away for long needs little memory and
        time. `at` is the time of change `after`, if the reader knows it: with another time in the feed, the reader has
        read another database's changes, and the result is empty.
        """
        joined = CHANGES.outerjoin(VERSIONS, _UPLOADED)
        with self._database.reading() as connection:
            if at is not None and _time_of(connection, after) != at:
                return []
            sizes = select(CHANGES.c.seq, func.coalesce(func.length(VERSIONS.c.manifest), 0)).select_from(joined)
            page = sizes.where(CHANGES.c.seq > after).order_by(CHANGES.c.seq).limit(limit)
            until, total = after, 0
            for seq, size in connection.execute(page):
                total += size
                if until > after and total > MANIFESTS_TOGETHER:
                    break
                until = seq
            changes = select(*_COLUMNS).select_from(joined).where(CHANGES.c.seq > after, CHANGES.c.seq <= until)
            rows = connection.execute(changes.order_by(CHANGES.c.seq)).all()
        width = len(CHANGES.columns)
        return [_change(row[:width], None if row.digest is None else entry_of(row)) for row in rows]

    def audit(
        self,
        after: int,
        limit: int,
        task: str | None = None,
        principal: str | None = None,
        since: datetime | None = None,
        newest: bool = False,
    ) -> list[Change]:
        """Returns the first `limit` changes above number `after` (0: from the start), in order, without their entries.

        `newest` returns the last ones, latest first. `task` also selects an old rename to this name. Raises
        InvalidInput if the name of the task or principal breaks the rule.
        """
        if task is not None:
            check_name(task)
        # PostgreSQL rejects text with a zero byte, and every database rejects half a surrogate pair.
        if principal is not None and not principal.isprintable():
            raise InvalidInput(f"'{printable(principal)}' is not the name of a principal")
        order = CHANGES.c.seq.desc() if newest else CHANGES.c.seq
        changes = select(CHANGES).where(CHANGES.c.seq > after).order_by(order).limit(limit)
        if task is not None:
            changes = changes.where(or_(CHANGES.c.task == task, CHANGES.c.name == task))
        if principal is not None:
            changes = changes.where(CHANGES.c.principal == principal)
        if since is not None:
            changes = changes.where(CHANGES.c.at >= min(max(since, _FIRST), _LAST))
        with self._database.reading() as connection:
            return [_change(row) for row in connection.execute(changes)]

    def last_moves(self, tasks: Collection[str]) -> dict[str, Change]:
        """Returns the last of `moves` of each task that has any."""
        of_tasks = CHANGES.c.task.in_(tasks)
        with self._database.reading() as connection:
            moved = _latest(connection, CHANGES.c.task, of_tasks, CHANGES.c.alias.is_not(None))
            ended = _latest(connection, CHANGES.c.task, of_tasks, _ENDS)
            current = [seq for task, seq in moved.items() if seq > ended.get(task, 0)]
            changes = connection.execute(select(CHANGES).where(CHANGES.c.seq.in_(current)))
            return {str(move.task): move for move in map(_change, changes)}

    def moves(self, task: str, limit: int) -> list[Change]:
        """Returns the last changes of a task's aliases, the latest first."""
        with self._database.reading() as connection:
            # Changes before the name was free are another task's.
            ended = _latest(connection, CHANGES.c.task, CHANGES.c.task == task, _ENDS).get(task, 0)
            moves = select(CHANGES).where(CHANGES.c.task == task, CHANGES.c.alias.is_not(None), CHANGES.c.seq > ended)
            return [*map(_change, connection.execute(moves.order_by(CHANGES.c.seq.desc()).limit(limit)))]

    def listening(self) -> AbstractContextManager[Listener | None]:
        return self._database.listening()

    def write(
        self,
        connection: Connection,
        by: Actor,
        action: str,
        task: str | None = None,
        version: int | None = None,
        alias: str | None = None,
        before: int | None = None,
        key: str | None = None,
        target: str | None = None,
        before_target: str | None = None,
        failed: str | None = None,
    ) -> int:
        """Adds a change and returns its number; call it last, because all other changes wait until the commit."""
        counted = update(FEED).values(last=FEED.c.last + 1)
        seq: int = connection.execute(counted.returning(FEED.c.last)).scalar_one()
        change = {"action": action, "task": task, "version": version, "alias": alias, "before": before}
        actor = {"principal": by.principal, "request": by.request, "message": by.message}
        row = {"seq": seq, "at": datetime.now(UTC), **change, **actor, "key": key, "target": target}
        connection.execute(insert(CHANGES).values(row | {"before_target": before_target, "failed": failed}))
        self._database.announce(connection)
        return seq

    def task(self, name: str, numbers: Collection[int] | None = None) -> tuple[list[VersionEntry], dict[str, Alias]]:
        """Aliases, and versions in `numbers` plus aliased ones, without manifests; all versions without `numbers`."""
        with self._database.reading() as connection:
            aliases = aliases_of(connection, name)
            wanted = {*(numbers or ()), *(number for at in aliases.values() for number in at.target.numbers)}
            some = true() if numbers is None or not aliases else VERSIONS.c.version.in_(wanted)
            return version_entries(connection, VERSIONS.c.task == name, some), aliases

    def snapshot(self) -> Snapshot:
        aliases: dict[str, dict[str, Alias]] = defaultdict(dict)
        # Most of a million aliases are `live` at version 1 and share one Alias object.
        places: dict[tuple[Any, ...], Alias] = {}
        with self._database.reading() as connection:
            last = _last_place(connection)
            for task, alias, *columns in connection.execute(select(ALIASES)):
                place = tuple(columns)
                aliases[task][sys.intern(alias)] = places.get(place) or places.setdefault(place, alias_of(*place))
            return Snapshot(last, version_entries(connection), aliases, _keepings(connection))

    def keepings(self) -> Mapping[str, Keeping]:
        """Reads how much is kept of each task that keeps answers."""
        with self._database.reading() as connection:
            return _keepings(connection)


def _change(row: Sequence[Any], entry: VersionEntry | None = None) -> Change:
    *columns, target, before, message, failed = row
    targets = (each and Target.loads(each) for each in (target, before))
    return Change(*(*columns, *targets, message, failed and json.loads(failed), entry))


def _latest(connection: Connection, by: ColumnElement[Any], *where: ColumnElement[bool]) -> dict[str, int]:
    return {
        str(name): seq
        for name, seq in connection.execute(select(by, func.max(CHANGES.c.seq)).where(*where).group_by(by))
    }


def _keepings(connection: Connection) -> dict[str, Keeping]:
    return {task: Keeping(*rest) for task, *rest in connection.execute(select(KEEPINGS))}


def last_change(connection: Connection) -> int:
    """Returns the number of the latest change."""
    seq: int = connection.execute(select(FEED.c.last)).scalar_one()
    return seq


def _last_place(connection: Connection) -> Place:
    seq = last_change(connection)
    return Place(seq, _time_of(connection, seq))


def _time_of(connection: Connection, seq: int) -> datetime | None:
    return connection.scalar(select(CHANGES.c.at).where(CHANGES.c.seq == seq))
