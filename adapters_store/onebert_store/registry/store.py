"""Opens a store: a database and a blob store, each named by a URL."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar, cast
from urllib.parse import unquote

from onebert_store import plugins
from onebert_store.blobs.address import bucket_of
from onebert_store.blobs.cache import BlobCache
from onebert_store.blobs.folder import FolderBlobs
from onebert_store.blobs.store import BlobStore
from onebert_store.errors import InvalidSettings, StoreCorrupt
from onebert_store.file.format import MAX_FILE_BYTES
from onebert_store.registry.dialects.database import Database
from onebert_store.registry.dialects.sqlite import SqliteDatabase, sqlite_url
from onebert_store.registry.schema import REGISTRY, ensure_schema

T = TypeVar("T")

DATABASE = "registry.sqlite3"
_FILE = "file:///"


@dataclass(frozen=True)
class StoreAddress:
    """The location of a store: URLs of the database (which may hold a password) and of the blobs.

    `STORES` and `BLOBS` have the schemes, and plug-ins more for blobs. If the blobs are elsewhere, `folder` holds
    uploads in progress and copies, of at most `copies_bytes` (0: none).
    """

    registry: str = field(repr=False)
    blobs: str = field(repr=False)
    folder: Path
    copies_bytes: int = 0

    @classmethod
    def within(cls, folder: Path, registry: str | None = None, blobs: str | None = None, copies_bytes: int = 0) -> Self:
        """Defaults to a folder: `registry.sqlite3` for the database, `blobs` for the blobs."""
        default = (folder / "blobs").absolute().as_uri()
        return cls(registry or sqlite_url(folder / DATABASE), blobs or default, folder, copies_bytes)


@dataclass(frozen=True)
class Store:
    """An open store: a database for rows and a blob store for contents."""

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
    # No check that the bucket exists: the first request finds out, and a bucket that is away now may be back by then.
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
        raise InvalidSettings(
            "a registry in PostgreSQL needs psycopg: pip install '.[postgresql]' in the checkout"
        ) from error
    return PostgresDatabase(url)


# Opens a database, by its URL's scheme; the database need not exist yet.
STORES: Mapping[str, Callable[[str], Database]] = {"sqlite": SqliteDatabase.of_url, "postgresql": _postgresql}

# Opens a blob store, by its URL's scheme; False as second argument requires that it exists.
BLOBS: Mapping[str, Callable[[StoreAddress, bool], BlobStore]] = {"file": _file, "s3": _s3}


@contextmanager
def open_store(where: Path | StoreAddress, new_database: bool = False, new_blobs: bool = True) -> Iterator[Store]:
    """Opens or creates a store; if its database can be owned, this process owns it until the block ends.

    A path stands for a store in that folder. `new_blobs` allows to create the place for blobs, `new_database` to create
    a database although there are blobs. Without the latter that is an error: a new database would turn blobs that were
    just restored from a backup into orphans.

    Raises:
        InvalidSettings: an address is not valid.
        StoreLocked: another process (or this one, elsewhere) owns the store.
        StoreCorrupt: the database is damaged, newer than this code, or missing although there are blobs.
        StorageFull, StorageUnavailable: the store cannot be read or written.
        OSError: the folder cannot be made.
    """
    blobs = _blobs(where, make=new_blobs)
    with _database(where) as database, database.owned():
        ensure_schema(database, REGISTRY, lambda: new_database or not any(blobs.blobs()))
        yield Store(database, blobs)


@contextmanager
def join_store(where: Path | StoreAddress, may_upgrade: bool = False) -> Iterator[Store]:
    """Opens an existing store beside the processes that use it, for work that does not disturb them.

    Raises like `open_store`, except StoreLocked, and StoreCorrupt also if the store does not exist, or its schema is
    older, unless it `may_upgrade` one that no other process is using.
    """
    blobs = _blobs(where, make=False)
    with _database(where) as database:
        with database.joined() as alone:
            ensure_schema(database, REGISTRY, lambda: False, may_migrate=lambda: may_upgrade and alone())
        # The lock is released, so that a server may start while the block runs.
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
    return _opener(BLOBS, address.blobs, "ONEBERT_BLOBS", plugins.BLOBS)(address, make)


def _address(where: Path | StoreAddress) -> StoreAddress:
    return StoreAddress.within(where) if isinstance(where, Path) else where


def _opener(openers: Mapping[str, T], url: str, setting: str, group: str = "") -> T:
    """The opener of the URL's scheme, one of the plug-ins of the `group` if `openers` lack the scheme."""
    scheme, colon, _ = url.partition(":")
    if colon and scheme in openers:
        return openers[scheme]
    installed = plugins.installed(group)
    if colon and scheme in installed:
        return cast(T, installed[scheme].load("the blob store "))
    # The error does not repeat the URL, which may hold a password.
    known = " or ".join(f"{scheme}:" for scheme in (*openers, *installed))
    raise InvalidSettings(f"{setting} is a URL that begins with {known}")
