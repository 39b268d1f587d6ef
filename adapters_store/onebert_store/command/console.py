"""Output shared by all commands: results on standard output, progress and errors on standard error."""

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
from rich import progress as bars
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onebert_store.errors import InvalidInput

HEARTBEAT_S = 30.0

# Columns if the output is not a terminal: a pipe or a file gets each row whole, on one line.
UNLIMITED = 100_000


# A terminal, or the variable COLUMNS, sets a width.
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNLIMITED

# Client text may look like markup or an emoji code; it is shown unchanged.
out = Console(markup=False, emoji=False, highlight=False, width=_WIDTH)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)


def say(line: str | Text) -> None:
    """Prints a line on standard output; only a terminal breaks it."""
    out.print(line, soft_wrap=True)


def tell(line: str) -> None:
    """Prints a line on standard error, apart from the results."""
    err.print(line, soft_wrap=True)


def confirm(what: str, otherwise: str) -> None:
    """Asks whether that may happen; raises InvalidInput, with what to say instead, where nobody can answer."""
    if not sys.stdin.isatty():
        raise InvalidInput(f"{what}; {otherwise}")
    typer.confirm(f"{what}; go on?", abort=True, err=True)


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output for scripts: not colored, not wrapped, times as ISO 8601."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=datetime.isoformat))


def table(*columns: str, numbers: Collection[str] = ()) -> Table:
    """Makes an empty table in the style of all commands; the columns in `numbers` are aligned to the right."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        # Break words rather than numbers: half a number is another number.
        is_number = name in numbers
        table.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    return table


def show(
    columns: Collection[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = (), record: Any = None
) -> None:
    """Prints a table of these rows on standard output, or `record` as JSON in its place (`--json`)."""
    if record is None:
        out.print(filled(table(*columns, numbers=numbers), rows))
    else:
        print_json(record)


def filled(table: Table, rows: Iterable[Sequence[str]]) -> Table:
    """Appends rows to a table and returns it."""
    for row in rows:
        table.add_row(*row)
    return table


def title(text: str) -> Text:
    """Makes a title above a table; rich would break the table's own title at narrow widths."""
    return Text(text, style="table.title")


def facts() -> Table:
    """Makes an empty table of names and values without a head."""
    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def print_error(detail: str) -> None:
    """Prints an error as one line on standard error."""
    typer.echo(f"error: {' '.join(detail.split())}", err=True)


def note_replaced(out: Path, when: str) -> None:
    """Tells the user, before slow work starts, that `out` exists and will be replaced; `when` ends the sentence."""
    if out.exists():
        tell(f"note: {out} is there, and is replaced {when}")


@contextmanager
def busy(description: str) -> Iterator[None]:
    """Shows a spinner with a clock on standard error, for work without steps; without a terminal, a `heartbeat`."""
    started = time.monotonic()
    spinner = _bar(bars.SpinnerColumn(), bars.TextColumn("{task.description}"), bars.TimeElapsedColumn())
    with spinner, heartbeat(lambda: f"{description}: {time.monotonic() - started:.0f} s"):
        spinner.add_task(description, total=None)
        yield


@contextmanager
def heartbeat(describe: Callable[[], str]) -> Iterator[None]:
    """Prints the line that `describe` returns, on another thread, every 30 seconds if standard error is no terminal."""
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
def progress(with_results: bool = False, describe: Callable[[], str] | None = None) -> Iterator[bars.Progress]:
    """Shows a progress bar until the work is done, or a `heartbeat`; on a terminal, results replace the bar."""
    # This width leaves room for the description in 80 columns.
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=10),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
    )
    bar = _bar(*columns, bars.TextColumn("left"), hidden=with_results and out.is_terminal)
    with bar, heartbeat(describe or (lambda: _line(bar))):
        yield bar


def _bar(*columns: bars.ProgressColumn, hidden: bool = False) -> bars.Progress:
    hidden = hidden or not err.is_terminal
    return bars.Progress(*columns, console=err, transient=True, redirect_stdout=False, disable=hidden)


def _line(bar: bars.Progress) -> str:
    shown = [task for task in bar.tasks if task.visible]
    totals = ["" if task.total is None else f" of {task.total:,.0f}" for task in shown]
    return ", ".join(
        f"{task.description}: {task.completed:,.0f}{total}" for task, total in zip(shown, totals, strict=True)
    )
