"""A store's folder: its database, its blobs, and the lock that says which process owns it."""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from onebert_store.disk import storage_errors_are_typed, sync
from onebert_store.errors import StoreCorrupt, StoreLocked
from onebert_store.file.format import MAX_FILE_BYTES
from onebert_store.registry.blobs import BlobStore
from onebert_store.registry.dialects import sqlite_engine
from onebert_store.registry.folder_blobs import FolderBlobs
from onebert_store.registry.schema import NO_DATABASE, ensure_schema

DATABASE = "registry.sqlite3"


@dataclass(frozen=True)
class Store:
    """Where versions live: rows in a database, contents as blobs."""

    database: Engine
    blobs: BlobStore


@contextmanager
def open_store(folder: Path, new_database: bool = False) -> Iterator[Store]:
    """Opens a store's folder, or makes it; this process alone owns the folder until the block ends.

    Args:
        folder: the store.
        new_database: whether an empty database may be made although there are blobs. Otherwise that is refused:
            with a new database, the blobs that a backup has just brought back would belong to no version.

    Raises:
        StoreLocked: another process (or this one, elsewhere) owns the folder.
        StoreCorrupt: the database is damaged, newer than this code, or missing while there are blobs.
        StorageFull, StorageUnavailable: the folder cannot be read or written.
        OSError: the folder cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with storage_errors_are_typed():
        sync(folder.parent)
    with _owned(folder), _parts(folder) as store:
        ensure_schema(store.database, may_create=new_database or not any(store.blobs.blobs()))
        yield store


@contextmanager
def join_store(folder: Path) -> Iterator[Store]:
    """Opens a folder beside the process that owns it, for work that does not disturb that process; makes no new store.

    Raises:
        StoreCorrupt: there is no store, or one that `open_store` would refuse; or another process owns it and its
            database is of an older schema, which cannot be changed meanwhile.
        StorageFull, StorageUnavailable: the folder cannot be read or written.
    """
    if not (folder / "blobs").is_dir():
        raise StoreCorrupt("there is no store in this folder")
    if not (folder / DATABASE).exists():
        raise StoreCorrupt(NO_DATABASE)
    with ExitStack() as owned, _parts(folder) as store:
        try:
            owned.enter_context(_owned(folder))
            alone = True
        except StoreLocked:
            alone = False
        ensure_schema(store.database, may_create=False, may_migrate=alone)
        # Given up now, so that a server may start while the block runs.
        owned.close()
        yield store


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    with ExitStack() as opened:
        with storage_errors_are_typed():
            lock = opened.enter_context(open(folder / "lock", "ab"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked("another process is using this store") from None
        yield


@contextmanager
def _parts(folder: Path) -> Iterator[Store]:
    if (folder / DATABASE).is_dir():
        raise StoreCorrupt(f"{DATABASE} is a folder and not a database; put the database that goes with the blobs back")
    database = sqlite_engine(folder / DATABASE)
    try:
        yield Store(database, FolderBlobs(folder / "blobs", MAX_FILE_BYTES))
    finally:
        database.dispose()
