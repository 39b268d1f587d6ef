"""Checks a store, rewrites damaged manifests from files, and makes versions of blobs without a row."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from sqlalchemy import update

from onebert_store.errors import InvalidInput, NotFound, OneBertError, StoreCorrupt
from onebert_store.file.delta import manifest_json
from onebert_store.file.format import loads
from onebert_store.registry.database import VERSIONS
from onebert_store.registry.dialects.database import Database
from onebert_store.registry.queries import require_version, version_record
from onebert_store.registry.records import VersionEntry, VersionRecord
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import Store

MIN_DIGEST_DIGITS = 8
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Checked:
    """The result for one version; `problem` is None if row and blob are whole, `repaired` if the row was rewritten."""

    entry: VersionEntry
    problem: str | None
    repaired: bool = False


def check_database(database: Database) -> None:
    """Runs the database's own checks; raises StoreCorrupt if pages or references are damaged."""
    with database.reading() as connection:
        if errors := database.integrity_errors(connection):
            raise StoreCorrupt(f"the store's database is damaged: {errors[0]}")


def check_versions(store: Store, entries: list[VersionEntry], repair: bool = False) -> Iterator[Checked]:
    """Verifies every blob once and every manifest; `repair` rewrites damaged manifests from the files."""
    for digest, same in groupby(sorted(entries, key=lambda entry: entry.digest), lambda entry: entry.digest):
        problem = _problem_in(partial(store.blobs.verify, digest))
        for entry in same:
            yield _check(store, entry, problem, repair)


def find_digest(store: Store, start: str) -> str:
    """The one blob whose digest starts with `start`; raises InvalidInput (few digits, several), NotFound (none)."""
    digits = start.removeprefix("sha256:")
    if len(digits) < MIN_DIGEST_DIGITS:
        raise InvalidInput(f"a digest is given by at least {MIN_DIGEST_DIGITS} digits")
    digests = [blob.digest for blob in store.blobs.blobs() if blob.digest.startswith(f"sha256:{digits}")]
    if not digests:
        raise NotFound("the store has no blob whose digest begins so")
    if len(digests) > 1:
        raise InvalidInput(f"{len(digests)} blobs have a digest that begins so")
    return digests[0]


def recover(store: Store, digest: str, task: str | None = None) -> tuple[VersionRecord, bool]:
    """Makes a version (task `recovered-…` by default) of a blob; raises StoreCorrupt, InvalidDelta."""
    delta = loads(store.blobs.get(digest))
    return Registry(store).add(task or f"recovered-{digest.removeprefix('sha256:')[:_SHOWN_DIGITS]}", delta)


def _check(store: Store, entry: VersionEntry, problem: str | None, repair: bool) -> Checked:
    """Checks the manifest of one version; with a known `problem`, only whether the version still exists."""
    try:
        with store.database.reading() as connection:
            (require_version if problem else version_record)(connection, entry.task, entry.version)
    except NotFound:
        # Deleted since the listing; its blob may be swept.
        return Checked(entry, None)
    except StoreCorrupt as error:
        if problem:
            raise
        if not repair:
            return Checked(entry, error.detail)
        if why := _problem_in(lambda: _write_manifest(store, entry)):
            return _check(store, entry, f"{error.detail}; not repaired: {why}", repair)
        return Checked(entry, error.detail, repaired=True)
    return Checked(entry, problem)


def _write_manifest(store: Store, entry: VersionEntry) -> None:
    manifest = manifest_json(loads(store.blobs.get(entry.digest)).manifest)
    same = (VERSIONS.c.task == entry.task, VERSIONS.c.digest == entry.digest)
    with store.database.writing() as connection:
        connection.execute(update(VERSIONS).where(*same).values(manifest=manifest))


def _problem_in(work: Callable[[], object]) -> str | None:
    try:
        work()
    except OneBertError as error:
        return error.detail
    return None
