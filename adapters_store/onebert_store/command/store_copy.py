"""The commands `onebert store backup`, `restore` and `copy`: a whole store into a folder, back, or elsewhere."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onebert_store.command import console
from onebert_store.command.options import DATA_DIR, store_at, with_options
from onebert_store.errors import InvalidInput, StoreCorrupt

if TYPE_CHECKING:
    from onebert_store.registry.store import StoreAddress

_URL = re.compile(r"[a-z0-9+]+:/.*")

Place = "a folder, or the URLs of database and blobs with a comma between: postgresql://HOST/NAME,s3://BUCKET/PREFIX"


@with_options(address=store_at)
def backup(
    to: Annotated[
        Path, typer.Argument(metavar="TO", help="A folder; one with an earlier backup is brought up to date.")
    ],
    *,
    address: "StoreAddress",
) -> None:
    """Copy the store into a folder, as it is at one moment, with kept answers and feedback. May run beside a server.

    The folder is a store itself: `onebert store check --data-dir TO` looks at it, `onebert serve` could serve it.
    """
    _copy(address, store_at(to))


@with_options(address=store_at)
def restore(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="The folder of a backup.", exists=True)],
    *,
    address: "StoreAddress",
) -> None:
    """Fill an empty store from a backup. The server must not run.

    Files that are there already, because only the database was lost, are kept and not copied again; so are later
    answers and feedback.
    """
    _copy(store_at(source), address, into_empty=True)


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help=f"A store: {Place}.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Likewise: an empty store, or an earlier copy.")],
) -> None:
    """Copy a store to other backends: rows, numbers, times and aliases as they are, files of versions, feedback.

    A server may run on FROM, and none on TO. A copy that was broken off goes on when it is run again, and a finished
    one is brought up to date: copy while the server runs, stop it, copy again, and start it on TO.
    """
    _copy(_address(source), _address(target))


def _copy(source: "StoreAddress", target: "StoreAddress", into_empty: bool = False) -> None:
    from onebert_store.registry.store import join_store, open_store  # noqa: PLC0415 - see `inspect`
    from onebert_store.upkeep.transfer import copy_store, require_empty  # noqa: PLC0415

    with (
        join_store(source, may_upgrade=True) as opened,
        open_store(target, new_database=True) as filled,
        console.progress() as bar,
    ):
        if into_empty:
            require_empty(filled)
        task = bar.add_task("copying files", total=None)
        copied = copy_store(opened, filled, lambda done, total: bar.update(task, completed=done, total=total))
    rows = copied.sample_rows
    console.say(f"{copied.versions} versions; {copied.blobs} files ({copied.size:,} bytes) were new")
    if rows is None:
        console.say("kept answers and feedback stay as they are: those that are there are later ones")
    else:
        console.say(f"{rows['samples']:,} kept answers, {rows['feedback']:,} rows of feedback")
    for digest, problem in copied.problems.items():
        console.print_error(f"{digest}: {problem}")
    if rows and rows["damaged"]:
        raise StoreCorrupt(f"{rows['damaged']} damaged rows of kept answers and feedback were left out")
    if copied.problems:
        raise StoreCorrupt(
            f"{len(copied.problems)} files could not be read; `onebert store check` names their versions"
        )


def _address(text: str) -> "StoreAddress":
    registry, _, blobs = text.rpartition(",")
    if _URL.fullmatch(registry) and _URL.fullmatch(blobs):
        return store_at(DATA_DIR, registry, blobs)
    if _URL.fullmatch(text):
        raise InvalidInput(f"a store is {Place}")
    return store_at(Path(text))
