"""What every command shares: results on standard output, progress and errors on standard error."""

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

HEARTBEAT_S = 30.0

# Columns of what is no terminal: a pipe or a file gets each row on one line, whole.
UNLIMITED = 100_000


# A terminal, and whoever says COLUMNS, has a width.
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNLIMITED

# Client text may look like markup or an emoji code; it is shown unchanged.
out = Console(markup=False, emoji=False, highlight=False, width=_WIDTH)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)


def say(line: str | Text) -> None:
    """Prints a line on standard output; a terminal breaks it where it likes, and nothing else does."""
    out.print(line, soft_wrap=True)


def tell(line: str) -> None:
    """The same on standard error, beside the results."""
    err.print(line, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output, for scripts: never colored or wrapped; times as ISO 8601."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=datetime.isoformat))


def table(*columns: str, numbers: Collection[str] = ()) -> Table:
    """An empty table with a head, in the style of every command.

    Args:
        columns: what the head says.
        numbers: which of the columns are aligned to the right.
    """
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        # Words are broken before numbers are: half a number is another number.
        whole = name in numbers
        made.add_column(name, justify="right" if whole else "left", overflow="fold", no_wrap=whole)
    return made


def show(columns: Collection[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """Prints a `table` of these rows on standard output."""
    out.print(filled(table(*columns, numbers=numbers), rows))


def filled(table: Table, rows: Iterable[Sequence[str]]) -> Table:
    """The table with these rows at its end."""
    for row in rows:
        table.add_row(*row)
    return table


def title(text: str) -> Text:
    """What stands above a table; a title of the table itself would be broken where narrow columns end."""
    return Text(text, style="table.title")


def facts() -> Table:
    """An empty table of two columns without a head: names and values."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    return made


def print_error(detail: str) -> None:
    """One line on standard error."""
    typer.echo(f"error: {' '.join(detail.split())}", err=True)


def note_replaced(out: Path, when: str) -> None:
    """Says, before anything slow, that a file is there that will be written over.

    Args:
        out: the file to write.
        when: the file is replaced, as the end of a sentence.
    """
    if out.exists():
        tell(f"note: {out} is there, and is replaced {when}")


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner with a clock on standard error, for work without steps to count; without a terminal, a `heartbeat`."""
    started = time.monotonic()
    spinner = _bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with spinner, heartbeat(lambda: f"{what}: {time.monotonic() - started:.0f} s"):
        spinner.add_task(what, total=None)
        yield


@contextmanager
def heartbeat(describe: Callable[[], str]) -> Iterator[None]:
    """Shows life in a log: a line every half minute where standard error is not a terminal, and so has no bar.

    Args:
        describe: gives the line, or nothing where there is nothing to say; called on another thread.
    """
    ended = Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_S):
            if line := describe():
                tell(line)

    if err.is_terminal:
        yield
        return
    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def progress(with_results: bool = False, describe: Callable[[], str] | None = None) -> Iterator[Progress]:
    """A progress bar on standard error, removed when the work is done; without a terminal, a `heartbeat`.

    Args:
        with_results: whether the command prints results meanwhile; on a terminal they take the place of the bar.
        describe: gives the lines of the heartbeat; None is how far each task of the bar is.
    """
    # A bar of this width leaves room for the description in 80 columns.
    columns = TextColumn("{task.description}"), BarColumn(bar_width=10), MofNCompleteColumn(), TimeRemainingColumn()
    bar = _bar(*columns, TextColumn("left"), hidden=with_results and out.is_terminal)
    with bar, heartbeat(describe or (lambda: _line(bar))):
        yield bar


def _bar(*columns: ProgressColumn, hidden: bool = False) -> Progress:
    """What is shown on standard error until the work is done; results go to standard output unchanged meanwhile."""
    hidden = hidden or not err.is_terminal
    return Progress(*columns, console=err, transient=True, redirect_stdout=False, disable=hidden)


def _line(bar: Progress) -> str:
    shown = [task for task in bar.tasks if task.visible]
    totals = ["" if task.total is None else f" of {task.total:,.0f}" for task in shown]
    return ", ".join(
        f"{task.description}: {task.completed:,.0f}{total}" for task, total in zip(shown, totals, strict=True)
    )
