"""Writes that survive a crash: files that appear whole, durable folders, typed errors for a disk that refuses."""

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from onebert_store.errors import InvalidSettings, StorageFull, StorageUnavailable


@contextmanager
def full_disk_is_typed() -> Iterator[None]:
    """Turns the operating system's "no space" into `StorageFull`; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("the disk has no room for this") from error
        raise


@contextmanager
def storage_errors_are_typed() -> Iterator[None]:
    """Turns every error of the operating system into `StorageFull` or `StorageUnavailable`.

    For the files of a store, whose paths mean nothing to a client. Errors of a file that the user named stay OSErrors.
    """
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
    """Whether a file that is to be written is one of those that are read, under whatever name."""
    return path.exists() and any(one.exists() and path.samefile(one) for one in sources)


def check_writable(option: str, path: Path, read: Iterable[Path] = ()) -> None:
    """Refuses, before anything slow, a file that an option names and that could not be written at the end.

    Raises:
        InvalidSettings: there is no folder for it, it is a folder itself, or one of the files that are read.
    """
    if not path.parent.is_dir():
        raise InvalidSettings(f"{option}: there is no folder {path.parent}")
    if path.is_dir():
        raise InvalidSettings(f"{option}: {path} is a folder; it names the file to write")
    if is_read(path, read):
        raise InvalidSettings(f"{option} is a file that is read")


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file that is either absent (or as before) or complete, also after a crash.

    Raises:
        StorageFull: the disk refused the write; `path` is as before.
    """
    with written_whole(path) as file:
        file.write(data)


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which is at `path` when the block has ended without an error, and else as before.

    Raises:
        StorageFull: the disk refused the write; `path` is as before.
    """
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
def _blamed_on(path: Path) -> Iterator[None]:
    """Makes errors name the file that the user named, and not the temporary file."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _umask() -> int:
    # The mask cannot be read without setting it; a temporary file is private, a file for the user is not.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
