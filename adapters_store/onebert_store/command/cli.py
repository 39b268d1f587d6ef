"""The `onebert` command: every command plugs in by an entry point (`plugins.py`); `inspect` is defined here."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from onebert_store.command import console
from onebert_store.command.options import AsJson
from onebert_store.errors import InvalidSettings, OneBertError
from onebert_store.plugins import COMMANDS, Plugin, installed

# The help groups commands by component in this order; other packages' commands come last.
PANELS = {
    "onebert_training": "Training",
    "onebert_server": "Serving",
    "onebert_encoder": "Files and stores",
    "onebert_store": "Files and stores",
}
MORE = "More"
# Names of commands in other programs -> the command here.
ELSEWHERE = {
    "rollback": "onebert promote TASK --rollback",
    "predict": "onebert classify TASK",
    "upload": "onebert push FILE",
    "list": "onebert tasks",
}


def main() -> None:
    """Runs the command line. Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupt; errors are one line."""
    # Set before torch is loaded, so that its threads spin only briefly before they sleep
    # (decision 6).
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    try:
        status = build_app(sys.argv[1:2])(standalone_mode=False)
    except OneBertError as error:
        console.print_error(error.detail)
        status = 1
    except typer.TyperException as error:
        # Without arguments, the help has been printed and the message is empty.
        if message := error.format_message():
            console.print_error(f"{message}{_elsewhere(*sys.argv[1:2])} (see --help)")
        status = error.exit_code
    except typer.Abort:
        status = 130
    except OSError as error:
        reason = error.strerror or type(error).__name__
        console.print_error(f"{error.filename}: {reason}" if isinstance(error.filename, str) else reason)
        status = 1
    sys.exit(status)


def _elsewhere(command: str = "") -> str:
    return f" It is '{ELSEWHERE[command]}' here." if command in ELSEWHERE else ""


def build_app(named: Sequence[str] = ()) -> typer.Typer:
    """Makes the command with the commands in `named`, or with all installed ones if none of these is a command.

    A command that cannot be imported raises its error when it is called.
    """
    app = typer.Typer(
        name="onebert",
        help="One frozen encoder, hundreds of classifiers: train deltas, serve them mixed in one batch.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    order = [*PANELS.values(), MORE]
    commands = installed(COMMANDS)
    wanted = [commands[name] for name in named if name in commands] or commands.values()
    for plugin in sorted(wanted, key=lambda plugin: (order.index(_panel(plugin)), plugin.name)):
        _plug(app, plugin)
    return app


def _panel(plugin: Plugin) -> str:
    return PANELS.get(plugin.module.partition(".")[0], MORE)


def inspect(
    file: Annotated[Path, typer.Argument(help="The delta file.", metavar="FILE")],
    as_json: AsJson = False,
) -> None:
    """Show what a delta file holds: base, labels, method, sizes, provenance, and what it changes.

    The file is read as strictly as the server reads it; whether the delta fits a base is checked at the upload.
    """
    # Imported here because every command starts through this file.
    from onebert_store.command.inspection import inspect_file, render  # noqa: PLC0415

    facts = inspect_file(file)
    if as_json:
        console.print_json(facts)
    else:
        console.out.print(render(facts))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onebert {version('onebert')}")
        raise typer.Exit


def _root(
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Takes the options before the command."""
    # Prints halves of surrogate pairs, and letters that the terminal's encoding lacks, as JSON escapes.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _plug(app: typer.Typer, plugin: Plugin) -> None:
    name, panel = plugin.name, _panel(plugin)
    try:
        command = plugin.load()
    except InvalidSettings as error:
        reason = error.detail.partition(": ")[2]
        anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app.command(name, help=f"Unavailable ({reason}).", context_settings=anything, rich_help_panel=panel)(
            _raising(error)
        )
    else:
        # A group of commands plugs in as the app that holds them.
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, help=_paragraphs(command.__doc__ or ""), rich_help_panel=panel)(command)


def _paragraphs(docstring: str) -> str:
    """Joins each paragraph's lines, so that the terminal breaks them and not the source code."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))


def _raising(error: OneBertError) -> Callable[[], None]:
    def refuse() -> None:
        raise error

    return refuse
