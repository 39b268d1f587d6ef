"""Crash-safe writes: files that appear whole, durable folders, and typed errors for a failing disk."""

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from onebert_store.errors import InvalidSettings, StorageFull, StorageUnavailable

POINTER = "it is a pointer of Git LFS, and not the file: `git lfs pull` fetches that"


def is_pointer(content: bytes) -> bool:
    """Whether a file begins as a pointer of Git LFS, which stands in a clone for a large file."""
    return content.startswith(b"version https://git-lfs.")


@contextmanager
def full_disk_is_typed() -> Iterator[None]:
    """Converts the operating system's "no space" into `StorageFull`; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("the disk has no room for this") from error
        raise


@contextmanager
def storage_errors_are_typed() -> Iterator[None]:
    """Converts every OSError of a store's files into `StorageFull` or `StorageUnavailable`."""
    try:
        with full_disk_is_typed():
            yield
    except OSError as error:
        raise StorageUnavailable(f"the store's disk refuses: {error.strerror or type(error).__name__}") from error


def sync(path: Path) -> None:
    """Makes a file's content durable, or the renames and removals inside a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_read(path: Path, sources: Iterable[Path]) -> bool:
    """True if the output file is one of the input files, under any name."""
    return path.exists() and any(source.exists() and path.samefile(source) for source in sources)


def check_writable(option: str, path: Path, read: Iterable[Path] = ()) -> None:
    """Raises InvalidSettings, before slow work starts, if an option's output file cannot be written or is an input."""
    if not path.parent.is_dir():
        raise InvalidSettings(f"{option}: there is no folder {path.parent}")
    if path.is_dir():
        raise InvalidSettings(f"{option}: {path} is a folder; it names the file to write")
    if is_read(path, read):
        raise InvalidSettings(f"{option} is a file that is read")


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, even in a crash; raises StorageFull (`path` unchanged) if the disk is full."""
    with written_whole(path) as file:
        file.write(data)


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Yields a file that replaces `path` if the block ends without an error; else `path` is unchanged."""
    with full_disk_is_typed(), _blamed_on(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        sync(path.parent)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder, and renames it to `folder` once its content is synced to disk.

    Raises:
        InvalidSettings: `folder` exists and is not an empty folder, or its parent does not exist.
        StorageFull: the disk refused a write; nothing is left behind.
    """
    check_free(folder)
    with full_disk_is_typed():
        # Not `mkdtemp`, which makes folders private to their owner; this one gets the umask's permissions.
        filling = folder.parent / f".{folder.name[:100]}-{secrets.token_hex(8)}"
        filling.mkdir()
        try:
            yield filling
            for path in filling.rglob("*"):
                sync(path)
            sync(filling)
            # Replaces an empty folder; fails if the folder has received a file meanwhile.
            os.rename(filling, folder)
        except BaseException:
            shutil.rmtree(filling, ignore_errors=True)
            raise
        sync(folder.parent)


def check_free(folder: Path) -> None:
    """Raises InvalidSettings before any work if `whole_folder` could not create the folder."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InvalidSettings(f"{folder} exists; name a new or an empty folder")
    if not folder.parent.is_dir():
        raise InvalidSettings(f"the folder that {folder} would lie in does not exist")


@contextmanager
def _blamed_on(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _umask() -> int:
    # The mask can only be read by setting it; mkstemp's files are private, and the user's file should not be.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
