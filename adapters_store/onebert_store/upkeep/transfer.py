"""Copies a whole store into another, between any databases and blob stores."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sqlalchemy import Connection, Result, select

from onebert_store.errors import InvalidInput, StoreCorrupt
from onebert_store.registry.database import ORPHANS, REPLICAS, TABLES, TASKS, VERSIONS
from onebert_store.registry.store import Store
from onebert_store.samples.store import open_samples
from onebert_store.upkeep.rows import DAMAGED, replace_rows
from onebert_store.upkeep.samples_copy import later_stay, one_moment, replace_samples

# Blobs that are copied at a time; most of that time is waiting for a bucket or a disk.
WORKERS = 8

_BLOBS_TOGETHER = 256
_ROWS_TOGETHER = 500


@dataclass
class Copied:
    """The result of a copy.

    Attributes:
        versions: versions in the target now.
        blobs: blobs that the target did not have before.
        size: bytes of these blobs.
        sample_rows: numbers of `samples` and `feedback`, and of `damaged` rows, which were left out; None if later ones
            of the target stay.
        problems: by digest, why the source could not deliver a blob. The target has the rows of such blobs.
    """

    versions: int = 0
    blobs: int = 0
    size: int = 0
    sample_rows: Counter[str] | None = None
    problems: dict[str, str] = field(default_factory=dict)


def copy_store(source: Store, target: Store, report: Callable[[int, int], None] = lambda done, total: None) -> Copied:
    """Makes `target` equal `source` at one moment: all rows except marks and replicas, and the blobs they name.

    Blobs come first, and existing ones are skipped, so an interrupted copy resumes where it stopped. Kept answers and
    feedback come next; theirs is a moment before the registry's, which therefore knows their tasks. The registry's rows
    come in one transaction, so the target stays as before until the copy is complete. The source may be in use, and its
    rows are only read; its sweeps cannot remove needed blobs unless the copy takes longer than their grace. The target
    must be without tasks or an earlier state of the same store, and not in use; only a sweep of it may run. `report`
    gets the number of blobs done and in total.

    Raises InvalidInput if the target is another store, with nothing changed; after StorageFull or StorageUnavailable
    the copy can be repeated.
    """
    with source.database.reading() as connection:
        is_new = _require_earlier(connection, target)
        wanted = _sizes(connection)
    with open_samples(source.database) as ours, open_samples(target.database) as theirs:
        stay = later_stay(source.database, ours.database, theirs.database, is_new)
        blobs = _Blobs(source, target, report)
        # The long part runs outside a transaction; the few blobs added meanwhile follow inside one.
        blobs.copy(wanted)
        # A sweep of the target may have removed blobs that none of its rows names yet; from here on sweeps wait.
        with target.database.adding() as lock, one_moment(ours.database) as samples, source.database.reading() as rows:
            blobs.look_again()
            now = _sizes(rows)
            blobs.copy(now)
            blobs.copied.sample_rows = None if stay else replace_samples(samples, theirs.database)
            with lock.writing() as sink, target.database.unhurried(sink):
                blobs.copied.versions = _copy_rows(rows, sink)
    blobs.copied.problems = {digest: why for digest, why in blobs.copied.problems.items() if digest in now}
    return blobs.copied


def require_empty(store: Store) -> None:
    """Raises InvalidInput if the store has, or ever had, a task."""
    with store.database.reading() as connection:
        if connection.execute(select(TASKS.c.name).limit(1)).first():
            raise InvalidInput("the store is not empty")


class _Blobs:
    def __init__(self, source: Store, target: Store, report: Callable[[int, int], None]) -> None:
        self.copied = Copied()
        self._source = source
        self._target = target
        self._report = report
        self._there: dict[str, int] = {}
        self.look_again()

    def look_again(self) -> None:
        self._there = {blob.digest: blob.size for blob in self._target.blobs.blobs()}

    def copy(self, sizes: dict[str, int]) -> None:
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
    return {row.digest: row.size for row in connection.execute(select(VERSIONS.c.digest, VERSIONS.c.size).distinct())}


def _require_earlier(source: Connection, target: Store) -> bool:
    """Returns whether the target has no versions; raises InvalidInput if it has one that the source never had."""
    with target.database.reading() as connection:
        theirs = {(row.task, row.version): row.digest for row in _names(connection)}
    if not theirs:
        return True
    last = {row.name: row.last_version for row in source.execute(select(TASKS))}
    ours = {(row.task, row.version): row.digest for row in _names(source)}
    for (task, version), digest in theirs.items():
        known = ours.get((task, version))
        # The source may have deleted this version: its number is at or below the task's last one.
        if known != digest and (known or version > last.get(task, 0)):
            raise InvalidInput(f"{task}@{version} of the target never was in the source; copy into an empty store")
    return False


def _names(connection: Connection) -> Result[tuple[str, int, str]]:
    columns = select(VERSIONS.c.task, VERSIONS.c.version, VERSIONS.c.digest)
    return connection.execute(columns.execution_options(yield_per=_ROWS_TOGETHER))


def _copy_rows(source: Connection, target: Connection) -> int:
    """Replaces all rows of the target, without orphan marks and replicas; returns the number of versions."""
    counts = replace_rows(source, target, [table for table in TABLES.sorted_tables if table not in (ORPHANS, REPLICAS)])
    if counts[DAMAGED]:
        raise StoreCorrupt(f"{counts[DAMAGED]} rows of the registry are damaged")
    return counts[VERSIONS.name]
