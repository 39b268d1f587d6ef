"""A whole store copied into another, whatever databases and blob stores these are: rows by table, blobs by digest."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sqlalchemy import Connection, Result, delete, insert, select

from onebert_store.errors import InvalidInput, StoreCorrupt
from onebert_store.registry.database import ORPHANS, REPLICAS, TABLES, TASKS, VERSIONS, reading
from onebert_store.registry.store import Store

WORKERS = 8
"""Blobs on their way at a time: most of what one takes is waiting for a bucket or a disk."""

_BLOBS_TOGETHER = 256
_ROWS_TOGETHER = 500


@dataclass
class Copied:
    """What a copy did.

    Attributes:
        versions: how many versions the target has now.
        blobs: blobs that were not in the target before.
        size: what these have together, in bytes.
        problems: what is wrong with blobs that the source could not give, by digest. The target has their rows.
    """

    versions: int = 0
    blobs: int = 0
    size: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def copy_store(source: Store, target: Store, report: Callable[[int, int], None] = lambda done, total: None) -> Copied:
    """Makes `target` what `source` is at one moment: rows, without orphans and replicas, and the blobs they name.

    Blobs come first, and one that is there already is not copied again, so a copy that was broken off goes on where it
    stopped. The rows come in one transaction, so the target is as before until it is whole. The source may be in use;
    the target may not.

    Args:
        source: is only read; a sweep leaves it all blobs that the copy needs, as long as the copy takes no longer than
            the sweep's time of grace.
        target: a store without tasks, or an earlier state of the same store, which may be swept meanwhile.
        report: is told how many blobs of how many have been looked at.

    Raises:
        InvalidInput: the target is another store; nothing was changed.
        StorageFull, StorageUnavailable: one of the two failed; the copy can be repeated.
    """
    with reading(source.database) as connection:
        _require_earlier(connection, target)
        wanted = _sizes(connection)
    blobs = _Blobs(source, target, report)
    # Long, and without a transaction; what is added meanwhile is little, and comes inside one.
    blobs.copy(wanted)
    # A sweep of the target may have removed blobs that no row of the target names yet; from here on it waits.
    with target.database.adding() as lock:
        blobs.look_again()
        with reading(source.database) as rows:
            now = _sizes(rows)
            blobs.copy(now)
            with lock.writing() as sink, target.database.unhurried(sink):
                blobs.copied.versions = _copy_rows(rows, sink)
    blobs.copied.problems = {digest: why for digest, why in blobs.copied.problems.items() if digest in now}
    return blobs.copied


def require_empty(store: Store) -> None:
    """Refuses a store that has, or ever had, a task.

    Raises:
        InvalidInput: it is not empty.
    """
    with reading(store.database) as connection:
        if connection.execute(select(TASKS.c.name).limit(1)).first():
            raise InvalidInput("the store is not empty")


class _Blobs:
    """Copies blobs from one store to another, several at a time."""

    def __init__(self, source: Store, target: Store, report: Callable[[int, int], None]) -> None:
        self.copied = Copied()
        self._source = source
        self._target = target
        self._report = report
        self._there: dict[str, int] = {}
        self.look_again()

    def look_again(self) -> None:
        """Takes what the target has now for what is there."""
        self._there = {blob.digest: blob.size for blob in self._target.blobs.blobs()}

    def copy(self, sizes: dict[str, int]) -> None:
        """Copies what the target has not yet, by digest and size in bytes; what cannot be read is a problem."""
        missing = [digest for digest, size in sizes.items() if self._there.get(digest) != size]
        done = len(sizes) - len(missing)
        with ThreadPoolExecutor(WORKERS, "onebert-copy") as pool:
            for start in range(0, len(missing), _BLOBS_TOGETHER):
                self._report(done + start, len(sizes))
                together = missing[start : start + _BLOBS_TOGETHER]
                for digest, size in zip(together, pool.map(self._copy_one, together), strict=True):
                    if size is not None:
                        self.copied.blobs += 1
                        self.copied.size += size
                        self._there[digest] = size
        self._report(len(sizes), len(sizes))

    def _copy_one(self, digest: str) -> int | None:
        try:
            data = self._source.blobs.get(digest)
        except StoreCorrupt as error:
            self.copied.problems[digest] = error.detail
            return None
        self._target.blobs.put(data)
        self.copied.problems.pop(digest, None)
        return len(data)


def _sizes(connection: Connection) -> dict[str, int]:
    """Every blob that a version names: digest to size in bytes."""
    return {row.digest: row.size for row in connection.execute(select(VERSIONS.c.digest, VERSIONS.c.size).distinct())}


def _require_earlier(source: Connection, target: Store) -> None:
    """Refuses a target with a version that the source never had: other content under its number, or a later number."""
    with reading(target.database) as connection:
        theirs = {(row.task, row.version): row.digest for row in _names(connection)}
    if not theirs:
        return
    last = {row.name: row.last_version for row in source.execute(select(TASKS))}
    ours = {(row.task, row.version): row.digest for row in _names(source)}
    for (task, version), digest in theirs.items():
        known = ours.get((task, version))
        # Without a row here the number has been given out all the same, if the version was deleted since.
        if known != digest and (known or version > last.get(task, 0)):
            raise InvalidInput(f"{task}@{version} of the target never was in the source; copy into an empty store")


def _names(connection: Connection) -> Result[tuple[str, int, str]]:
    columns = select(VERSIONS.c.task, VERSIONS.c.version, VERSIONS.c.digest)
    return connection.execute(columns.execution_options(yield_per=_ROWS_TOGETHER))


def _copy_rows(source: Connection, target: Connection) -> int:
    """Replaces all rows of the target, and says how many versions there are.

    Marks of orphans stay behind: what is an orphan in the target was not seen there before. So do the servers that
    follow the source.
    """
    tables = [table for table in TABLES.sorted_tables if table not in (ORPHANS, REPLICAS)]
    for table in reversed(tables):
        target.execute(delete(table))
    versions = 0
    for table in tables:
        found = source.execute(select(table).execution_options(yield_per=_ROWS_TOGETHER))
        for rows in found.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in rows])
            versions += len(rows) if table is VERSIONS else 0
    return versions
