"""Where a store is, and what opens it: a database and a place for blobs, each named by a URL."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import unquote

from onebert_store.blobs.address import bucket_of
from onebert_store.blobs.cache import BlobCache
from onebert_store.blobs.folder import FolderBlobs
from onebert_store.blobs.protocol import BlobStore
from onebert_store.errors import InvalidSettings, StoreCorrupt
from onebert_store.file.format import MAX_FILE_BYTES
from onebert_store.registry.dialects.protocol import Database
from onebert_store.registry.dialects.sqlite import SqliteDatabase, sqlite_url
from onebert_store.registry.schema import ensure_schema

T = TypeVar("T")

DATABASE = "registry.sqlite3"
_FILE = "file:///"


@dataclass(frozen=True)
class StoreAddress:
    """Where a store is.

    Attributes:
        registry: URL of the database; its scheme is one of `STORES`. It may hold a password.
        blobs: URL of the blobs; its scheme is one of `BLOBS`.
        folder: where this process keeps what belongs to blobs elsewhere: uploads on their way, and copies.
        copies_bytes: what the copies take together at most; 0 keeps none.
    """

    registry: str = field(repr=False)
    blobs: str = field(repr=False)
    folder: Path
    copies_bytes: int = 0

    @classmethod
    def within(cls, folder: Path, registry: str | None = None, blobs: str | None = None, copies_bytes: int = 0) -> Self:
        """What is not given lies in a folder: the database as `registry.sqlite3`, the blobs as the folder `blobs`."""
        own = (folder / "blobs").absolute().as_uri()
        return cls(registry or sqlite_url(folder / DATABASE), blobs or own, folder, copies_bytes)


@dataclass(frozen=True)
class Store:
    """Where versions live: rows in a database, contents as blobs."""

    database: Database
    blobs: BlobStore


def _file(address: StoreAddress, make: bool) -> BlobStore:
    url = address.blobs
    folder = Path("/", unquote(url.removeprefix(_FILE)))
    if not url.startswith(_FILE) or not folder.name or "?" in url or "#" in url:
        raise InvalidSettings("blobs in a folder are file:///FOLDER, with the folder's path percent-encoded")
    if not make and not folder.is_dir():
        raise StoreCorrupt("there is no store in this folder")
    return FolderBlobs(folder, MAX_FILE_BYTES)


def _s3(address: StoreAddress, make: bool) -> BlobStore:
    # Whether there is such a bucket, the first request will tell: one that is away now may be back by then.
    bucket, prefix = bucket_of(address.blobs, "blobs")
    # Imported here: the default, a folder, needs no obstore.
    from onebert_store.blobs.bucket import ObjectBlobs, open_bucket  # noqa: PLC0415

    copies = BlobCache(address.folder / "blob-copies", address.copies_bytes)
    return ObjectBlobs(open_bucket(bucket, prefix), address.folder / "staging", copies, MAX_FILE_BYTES)


def _postgresql(url: str) -> Database:
    # Imported here: the default, SQLite, needs no psycopg.
    try:
        from onebert_store.registry.dialects.postgresql import PostgresDatabase  # noqa: PLC0415
    except ImportError as error:
        raise InvalidSettings("a registry in PostgreSQL needs psycopg: pip install 'onebert[postgresql]'") from error
    return PostgresDatabase(url)


STORES: Mapping[str, Callable[[str], Database]] = {"sqlite": SqliteDatabase.of_url, "postgresql": _postgresql}
"""What opens a database, by the scheme of its URL; the database may be one that is still to be made."""

BLOBS: Mapping[str, Callable[[StoreAddress, bool], BlobStore]] = {"file": _file, "s3": _s3}
"""What opens a place for blobs, by the scheme of its URL; told whether it may be made, else it has to be there."""


@contextmanager
def open_store(where: Path | StoreAddress, new_database: bool = False, new_blobs: bool = True) -> Iterator[Store]:
    """Opens a store, or makes it; where its database has an owner, this process is the only one until the block ends.

    Args:
        where: the store; a folder stands for a store that lies in it.
        new_database: whether a database may be made although there are blobs. Otherwise that is refused: with a new
            database, the blobs that a backup has just brought back would belong to no version.
        new_blobs: whether the place of the blobs may be made.

    Raises:
        InvalidSettings: an address is none.
        StoreLocked: another process (or this one, elsewhere) owns the store.
        StoreCorrupt: the database is damaged, newer than this code, or missing while there are blobs.
        StorageFull, StorageUnavailable: the store cannot be read or written.
        OSError: the folder cannot be made.
    """
    blobs = _blobs(where, make=new_blobs)
    with _database(where) as database, database.owned():
        ensure_schema(database, lambda: new_database or not any(blobs.blobs()))
        yield Store(database, blobs)


@contextmanager
def join_store(where: Path | StoreAddress) -> Iterator[Store]:
    """Opens a store beside the processes that use it, for work that does not disturb them; makes no new store.

    Raises:
        InvalidSettings: an address is none.
        StoreCorrupt: there is no store, or one that `open_store` would refuse; or its database is of an older schema,
            which cannot be changed while another process may use it.
        StorageFull, StorageUnavailable: the store cannot be read or written.
    """
    blobs = _blobs(where, make=False)
    with _database(where) as database:
        with database.joined() as alone:
            ensure_schema(database, lambda: False, may_migrate=alone)
        # Nobody is kept out any more, so that a server may start while the block runs.
        yield Store(database, blobs)


@contextmanager
def _database(where: Path | StoreAddress) -> Iterator[Database]:
    url = _address(where).registry
    database = _opener(STORES, url, "ONEBERT_REGISTRY")(url)
    try:
        yield database
    finally:
        database.close()


def _blobs(where: Path | StoreAddress, make: bool) -> BlobStore:
    address = _address(where)
    return _opener(BLOBS, address.blobs, "ONEBERT_BLOBS")(address, make)


def _address(where: Path | StoreAddress) -> StoreAddress:
    return StoreAddress.within(where) if isinstance(where, Path) else where


def _opener(openers: Mapping[str, T], url: str, setting: str) -> T:
    # The URL may hold a password, so that the error does not repeat it.
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in openers:
        known = " or ".join(f"{scheme}:" for scheme in openers)
        raise InvalidSettings(f"{setting} is a URL that begins with {known}")
    return openers[scheme]
