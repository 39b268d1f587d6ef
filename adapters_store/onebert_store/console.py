"""What every command shares: results on standard output, progress and errors on standard error."""

import json
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status

# Client text may look like markup or an emoji code; it is shown as it is.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output, for scripts: never colored or wrapped."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_error(detail: str) -> None:
    """One line on standard error."""
    typer.echo(f"error: {' '.join(detail.split())}", err=True)


def busy(what: str) -> Status:
    """A spinner on standard error for what has no count; nothing where that is not a terminal."""
    return err.status(what)


def progress(with_results: bool = False) -> Progress:
    """A progress bar on standard error, gone when done; nothing where that is not a terminal.

    Args:
        with_results: results are printed meanwhile; where they are seen on the terminal, they are progress enough.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        # Results go where the caller sent them, also while the bar is shown.
        redirect_stdout=False,
        disable=not err.is_terminal or (with_results and out.is_terminal),
    )
