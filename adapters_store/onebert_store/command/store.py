"""The commands `onebert store …`: check a store, remove orphans, recover versions."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebert_store.command import console
from onebert_store.command.options import AsJson, duration, store_at, with_options
from onebert_store.command.store_copy import backup, copy, restore
from onebert_store.errors import OneBertError, StoreCorrupt
from onebert_store.file.format import loads
from onebert_store.file.strict_json import printable

if TYPE_CHECKING:
    from datetime import datetime

    from onebert_store.blobs.staging import BlobInfo
    from onebert_store.registry.store import Store, StoreAddress
    from onebert_store.samples.records import Unknown
    from onebert_store.upkeep.gc import Orphan

# First digits of a task's id in a table; an id has 32.
_ID_DIGITS = 12

store = typer.Typer(
    help="Look after a store: check it, remove what no version needs, bring versions back, back it up, move it.",
    no_args_is_help=True,
)
for command in (backup, restore, copy):
    store.command()(command)


@store.command()
@with_options(address=store_at)
def check(
    address: "StoreAddress",
    repair: Annotated[
        bool, typer.Option("--repair", help="Write damaged manifests in the database again, from the files.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is missing or damaged of every version, and what no version or task has. May run beside a server.

    Exit code 1 where something is missing or damaged. Pushing a delta again replaces its missing or damaged file.
    """
    from onebert_store.registry.queries import version_entries  # noqa: PLC0415
    from onebert_store.registry.store import join_store  # noqa: PLC0415
    from onebert_store.samples.store import open_samples  # noqa: PLC0415
    from onebert_store.upkeep.check import check_database, check_versions  # noqa: PLC0415 - see `inspect`
    from onebert_store.upkeep.gc import find_orphans  # noqa: PLC0415

    with join_store(address) as opened, open_samples(opened.database, looking=True) as samples:
        check_database(opened.database)
        if samples.database is not opened.database:
            check_database(samples.database)
        with opened.database.reading() as connection:
            entries = version_entries(connection)
        with console.progress() as bar:
            every = check_versions(opened, entries, repair)
            checks = bar.track(every, total=len(entries), description="reading files")
            broken = [check for check in checks if check.problem]
        orphans = find_orphans(opened)
        unknown = samples.sweeper.unknown()
        counts = samples.check()
        if as_json:
            problems = [asdict(bad.entry) | {"problem": bad.problem, "repaired": bad.repaired} for bad in broken]
            facts = [_facts(opened, orphan) for orphan in orphans]
            lists = {"problems": problems, "orphans": facts, "unknown": [asdict(rows) for rows in unknown]}
            console.print_json({"versions": len(entries), **lists, "kept": counts})
        else:
            console.say(f"{len(entries)} versions, {len(entries) - len(broken)} of them whole")
            if broken:
                named = ((f"{bad.entry.task}@{bad.entry.version}", bad) for bad in broken)
                rows = ((name, str(bad.problem), "repaired" if bad.repaired else "") for name, bad in named)
                console.show(("version", "problem", ""), rows)
            _print_orphans(opened, orphans)
            console.say(f"{counts['samples']:,} kept answers, {counts['feedback']:,} rows of feedback")
            _print_unknown(dict.fromkeys(unknown, False))
    if unrepaired := sum(not bad.repaired for bad in broken):
        raise StoreCorrupt(f"{unrepaired} of {len(entries)} versions cannot be served as they are")
    if damaged := counts["damaged"]:
        raise StoreCorrupt(f"{damaged} rows of kept answers and feedback are damaged, and left out everywhere")


@store.command()
@with_options(address=store_at)
def gc(
    address: "StoreAddress",
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="TIME", help="How long it must have had none, as 90m, 24h or 7d."),
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Remove what no version or task has had for a time: files of deleted versions or broken uploads, unknown feedback.

    May run beside a server. An older database that is restored finds the files of its versions, and a newer one the
    feedback of its tasks, only as long as none has been removed.
    """
    from onebert_store.registry.store import join_store  # noqa: PLC0415
    from onebert_store.samples.store import open_samples  # noqa: PLC0415
    from onebert_store.upkeep.gc import sweep  # noqa: PLC0415

    grace = duration(older_than)
    with join_store(address) as opened, open_samples(opened.database) as samples:
        swept = sweep(opened, grace)
        rows = samples.sweeper.remove_unknown(grace)
        if as_json:
            removed = [asdict(blob) for blob in swept.removed]
            unknown = [asdict(unknown_rows) | {"removed": gone} for unknown_rows, gone in rows.items()]
            facts = [_facts(opened, orphan) for orphan in swept.waiting]
            console.print_json({"removed": removed, "kept": facts, "unknown": unknown})
        else:
            console.say(f"{_counted(swept.removed)} removed")
            _print_orphans(opened, swept.waiting)
            if swept.waiting and not swept.failure:
                console.say(f"kept: found without a version less than {older_than} ago (--older-than)")
            _print_unknown(rows)
    if swept.failure:
        raise swept.failure


@store.command()
@with_options(address=store_at)
def recover(
    digests: Annotated[
        list[str] | None,
        typer.Argument(help="Digests of files, or their first digits; none stands for all.", metavar="[DIGEST]..."),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="The task that gets the versions; by default recovered-DIGEST.")
    ] = None,
    *,
    address: "StoreAddress",
) -> None:
    """Make versions of files that no version has, also where the database is lost. The server must not run.

    A file does not hold the name of its task. `onebert store check` lists the files with the labels of each.
    """
    from onebert_store.registry.store import open_store  # noqa: PLC0415
    from onebert_store.upkeep.check import find_digest  # noqa: PLC0415
    from onebert_store.upkeep.check import recover as recover_one  # noqa: PLC0415
    from onebert_store.upkeep.gc import find_orphans  # noqa: PLC0415

    failed = 0
    with open_store(address, new_database=True, new_blobs=False) as opened:
        wanted = [find_digest(opened, start) for start in digests or []]
        for digest in wanted if digests else [orphan.blob.digest for orphan in find_orphans(opened)]:
            try:
                record, created = recover_one(opened, digest, task)
            except OneBertError as error:
                failed += 1
                console.print_error(f"{_short(digest)}: {error.detail}")
            else:
                console.say(f"{_short(digest)} {'is' if created else 'was already'} {record.task}@{record.version}")
    if failed:
        raise StoreCorrupt(f"{failed} {'file was' if failed == 1 else 'files were'} not recovered")


def _print_orphans(opened: "Store", orphans: "list[Orphan] | tuple[Orphan, ...]") -> None:
    if not orphans:
        return
    console.say(f"{_counted([orphan.blob for orphan in orphans])} of no version:")
    table = console.table("digest", "bytes", "since", "content", numbers=["bytes"])
    for orphan in orphans:
        facts = _facts(opened, orphan)
        content = printable(facts["content"], 60)
        table.add_row(_short(orphan.blob.digest), f"{orphan.blob.size:,}", _time(orphan.since), content)
    console.out.print(table)


def _print_unknown(unknown: "dict[Unknown, bool]") -> None:
    if not unknown:
        return
    tasks = f"{len(unknown)} task{'' if len(unknown) == 1 else 's'}"
    console.say(f"kept answers and feedback of {tasks} that the registry does not know:")
    table = console.table("task or id", "answers", "feedback", "since", "", numbers=["answers", "feedback"])
    for rows, removed in unknown.items():
        counts = f"{rows.samples:,}", f"{rows.feedback:,}"
        table.add_row(rows.task or rows.id[:_ID_DIGITS], *counts, _time(rows.since), "removed" if removed else "")
    console.out.print(table)


def _time(since: "datetime | None") -> str:
    return f"{since:%Y-%m-%d %H:%M}" if since else "just now"


def _facts(opened: "Store", orphan: "Orphan") -> dict[str, Any]:
    return {**asdict(orphan.blob), "since": orphan.since, "content": _content(opened, orphan.blob.digest)}


def _content(opened: "Store", digest: str) -> str:
    try:
        manifest = loads(opened.blobs.get(digest)).manifest
    except OneBertError as error:
        return f"unreadable: {error.detail}"
    return f"{manifest.method}, {manifest.task_type}: {', '.join(manifest.labels[:8])}"


def _counted(blobs: "list[BlobInfo] | tuple[BlobInfo, ...]") -> str:
    return f"{len(blobs)} file{'' if len(blobs) == 1 else 's'} ({sum(blob.size for blob in blobs):,} bytes)"


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
