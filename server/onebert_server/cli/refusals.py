"""A gate that refuses to let an alias move: the options to move past it, and its report on the terminal."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from onebert_store.command import console
from onebert_store.errors import GateFailed
from onebert_store.file.fingerprint import overlap_note
from onebert_store.file.strict_json import printable

Force = Annotated[bool, typer.Option("--force", help="Move past the task's gate; say why with --message.")]
Message = Annotated[str | None, typer.Option("--message", metavar="WHY", help="Why, for the audit trail.")]


def require_reason(force: bool, message: str | None) -> None:
    """Raises BadParameter for `--force` without `--message`."""
    if force and message is None:
        raise typer.BadParameter("to move past a gate: --force --message WHY")


@contextmanager
def showing_refusals(as_json: bool, place: str = "") -> Iterator[None]:
    """Prints the report of a gate that refuses, under `place`, where there are several; the error propagates."""
    try:
        yield
    except GateFailed as error:
        if error.report is not None:
            if place:
                console.say(place)
            (console.print_json if as_json else _print)(error.report)
        raise


def print_checks(report: Mapping[str, Any]) -> None:
    """Prints each check of a report with its number and its bound, and says whether rows were trained on."""
    checks = (
        (check["name"], f"{check['value']:.4g}", f"{check['bound']:.4g}", "passed" if check["passed"] else "failed")
        for check in report["checks"]
    )
    console.show(("check", "value", "bound", ""), checks, ("value", "bound"))
    numbers = report["numbers"] or {}
    for note in overlap_note(numbers.get("trained_on", 0), numbers.get("rows", 0)):
        console.say(f"note: {note}")


def _print(report: Mapping[str, Any]) -> None:
    print_checks(report)
    wrong = [("must", answer) for answer in report["must"]] + [("row", answer) for answer in report["worst"]]
    if wrong:
        console.say("")
        cells = (
            (f"{place} {answer['row']}", *(_cell(answer[side]) for side in ("right", "candidate", "live")))
            for place, answer in wrong
        )
        console.show(("where", "right", "answered", "live"), cells)


def _cell(answer: Any) -> str:
    from onebert_server.cli.compare.differences import answer_in_words  # noqa: PLC0415 - slow to import
    from onebert_store.comparison import answer_from  # noqa: PLC0415 - slow to import

    return "–" if answer is None else printable(answer_in_words(answer_from(answer)) or "none")
