"""Whether a store is whole, and what brings it back: versions from blobs, rows from files."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import update

from onebert_store.errors import InvalidInput, NotFound, OneBertError, StoreCorrupt
from onebert_store.file.canonical import manifest_json
from onebert_store.file.format import loads
from onebert_store.registry.database import VERSIONS, reading, writing
from onebert_store.registry.queries import require_version, version_record
from onebert_store.registry.records import VersionEntry, VersionRecord
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import Store

MIN_DIGEST_DIGITS = 8
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Checked:
    """One version after its check; `problem` is None where row and blob are whole, `repaired` if the row now is."""

    entry: VersionEntry
    problem: str | None
    repaired: bool = False


def check_database(store: Store) -> None:
    """Runs the database's own checks.

    Raises:
        StoreCorrupt: pages or references are damaged.
    """
    with reading(store.database) as connection:
        if errors := store.database.integrity_errors(connection):
            raise StoreCorrupt(f"the store's database is damaged: {errors[0]}")


def check_versions(store: Store, entries: list[VersionEntry], repair: bool = False) -> Iterator[Checked]:
    """Reads every blob and every manifest; each blob once, in the order of the digests.

    Args:
        store: may have an owner beside this process.
        entries: what to look at.
        repair: whether a damaged manifest is written anew from the file, which holds the same manifest.
    """
    for digest, same in groupby(sorted(entries, key=lambda entry: entry.digest), lambda entry: entry.digest):
        blob_problem = _problem_of_blob(store, digest)
        for entry in same:
            if blob_problem is None:
                yield _check_manifest(store, entry, repair)
            elif _exists(store, entry):
                yield Checked(entry, blob_problem)


def find_digest(store: Store, start: str) -> str:
    """The digest of the one blob whose digest begins with `start`, with or without `sha256:`.

    Raises:
        InvalidInput: too few digits, or several blobs have such a digest.
        NotFound: no blob has such a digest.
    """
    digits = start.removeprefix("sha256:")
    if len(digits) < MIN_DIGEST_DIGITS:
        raise InvalidInput(f"a digest is given by at least {MIN_DIGEST_DIGITS} digits")
    found = [blob.digest for blob in store.blobs.blobs() if blob.digest.startswith(f"sha256:{digits}")]
    if not found:
        raise NotFound("the store has no blob whose digest begins so")
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} blobs have a digest that begins so")
    return found[0]


def recover(store: Store, digest: str, task: str | None = None) -> tuple[VersionRecord, bool]:
    """Makes a version of a blob; the file does not hold the name of the task that it belonged to.

    Args:
        store: owned by this process.
        digest: names the blob.
        task: which task gets the version; None is a task named after the digest, `recovered-…`.

    Returns:
        As `Registry.add`.

    Raises:
        InvalidInput: the task's name breaks the rule.
        StoreCorrupt: the blob is missing or damaged.
        InvalidDelta: the blob is no delta file.
    """
    delta = loads(store.blobs.get(digest))
    return Registry(store).add(task or f"recovered-{digest.removeprefix('sha256:')[:_SHOWN_DIGITS]}", delta)


def _problem_of_blob(store: Store, digest: str) -> str | None:
    try:
        store.blobs.verify(digest)
    except OneBertError as error:
        return error.detail
    return None


def _check_manifest(store: Store, entry: VersionEntry, repair: bool) -> Checked:
    try:
        with reading(store.database) as connection:
            version_record(connection, entry.task, entry.version)
    except NotFound:
        return Checked(entry, None)
    except StoreCorrupt as error:
        return _repair(store, entry, error.detail) if repair else Checked(entry, error.detail)
    return Checked(entry, None)


def _repair(store: Store, entry: VersionEntry, problem: str) -> Checked:
    try:
        _write_manifest(store, entry)
    except OneBertError as error:
        # The other versions are still to be checked, and this one may have been deleted and its blob swept.
        return Checked(entry, f"{problem}; not repaired: {error.detail}" if _exists(store, entry) else None)
    return Checked(entry, problem, repaired=True)


def _write_manifest(store: Store, entry: VersionEntry) -> None:
    manifest = manifest_json(loads(store.blobs.get(entry.digest)).manifest)
    same = (VERSIONS.c.task == entry.task, VERSIONS.c.digest == entry.digest)
    with writing(store.database) as connection:
        connection.execute(update(VERSIONS).where(*same).values(manifest=manifest))


def _exists(store: Store, entry: VersionEntry) -> bool:
    """Whether the version still exists; one that was deleted since the listing may have lost its blob to a sweep."""
    try:
        with reading(store.database) as connection:
            require_version(connection, entry.task, entry.version)
    except NotFound:
        return False
    return True
