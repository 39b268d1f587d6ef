"""The `onebert` command: every command plugs in by an entry point (`plugins.py`); `inspect` is defined here."""

import ast
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from onebert_store.command import console
from onebert_store.command.lengths import shorten
from onebert_store.command.options import AsJson
from onebert_store.errors import InvalidSettings, OneBertError
from onebert_store.plugins import COMMANDS, Plugin, installed

# Commands of a user's day, in its order; the help shows them first.
DAILY = (
    *("check", "train", "evaluate", "calibrate", "push", "classify", "score", "status", "promote", "rollout", "gate"),
    *("review", "diff", "apply", "serve"),
)
EVERY_DAY = "Every day"
# Commands that measure and compare; the help shows them behind all others of ours.
RESEARCH = {"sweep": "Research", "report": "Research", "bench": "Research"}
# It groups the others by component in this order; other packages' commands come last.
PANELS = {
    "onebert": "Training",
    "onebert_training": "Training",
    "onebert_server": "Serving",
    "onebert_encoder": "Files and stores",
    "onebert_store": "Files and stores",
}
MORE = "More"


def main() -> None:
    """Runs the command line. Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupt; errors are one line."""
    # Set before torch is loaded: OpenMP's threads spin for hundreds of milliseconds by default, on cores that others
    # need.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    try:
        status = build_app()(standalone_mode=False)
    except OneBertError as error:
        console.print_error(error.detail)
        status = 1
    except typer.TyperException as error:
        # Without arguments, the help has been printed and the message is empty.
        if message := error.format_message():
            console.print_error(f"{message} (see --help)")
        status = error.exit_code
    except typer.Abort:
        status = 130
    except OSError as error:
        reason = error.strerror or type(error).__name__
        console.print_error(f"{error.filename}: {reason}" if isinstance(error.filename, str) else reason)
        status = 1
    sys.exit(status)


class Commands(TyperGroup):
    """All installed commands; the help reads their sources, and only the one that runs is imported."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        order = [EVERY_DAY, *PANELS.values(), *RESEARCH.values(), MORE]
        place = {name: at for at, name in enumerate(DAILY)}
        plugins = sorted(
            installed(COMMANDS).values(),
            key=lambda plugin: (order.index(_panel(plugin)), place.get(plugin.name, 0), plugin.name),
        )
        self._plugins = {plugin.name: plugin for plugin in plugins}
        self.commands = {plugin.name: TyperCommand(plugin.name, rich_help_panel=_panel(plugin)) for plugin in plugins}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command as the help lists it."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help is None:
            command.help = _description(self._plugins[cmd_name])
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of `onebert` itself."""
        return _without_types_of_flags(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command as it runs or completes; raises TyperException for an unknown one."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and plugged(self._plugins[args[0]]), rest


def build_app() -> typer.Typer:
    """Makes the command with all installed commands."""
    app = typer.Typer(
        name="onebert",
        cls=Commands,
        help="One frozen encoder, hundreds of classifiers: train deltas, serve them mixed in one batch.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    return app


def _panel(plugin: Plugin) -> str:
    if plugin.name in DAILY:
        return EVERY_DAY
    return RESEARCH.get(plugin.name) or PANELS.get(plugin.module.partition(".")[0], MORE)


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
    # Prints halves of surrogate pairs, and letters that the terminal's encoding lacks, as JSON escapes.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def plugged(plugin: Plugin) -> Any:
    """Imports a command; one that cannot be imported raises its error when it is called."""
    app, name = typer.Typer(), plugin.name
    try:
        command = plugin.load()
    except InvalidSettings as error:
        anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app.command(name, context_settings=anything)(_raising(error))
    else:
        # A group of commands plugs in as the app that holds them.
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, help=_paragraphs(command.__doc__ or ""))(command)
    return _plain(get_group(app).commands[name])


def _plain(command: Any) -> Any:
    shorten(command)
    _without_types_of_flags(command.get_params(typer.Context(command)))
    for subcommand in getattr(command, "commands", {}).values():
        _plain(subcommand)
    return command


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """The same parameters; typer would print `<bool>` beside an option that takes no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _description(plugin: Plugin) -> str:
    """The docstring of a command, or the help of a group of commands."""
    try:
        if text := _written(plugin):
            return _paragraphs(text)
        command = plugin.load()
    except InvalidSettings as error:
        return f"Unavailable ({error.detail.partition(': ')[2]})."
    return _paragraphs((command.info.help if isinstance(command, typer.Typer) else command.__doc__) or "")


def _written(plugin: Plugin) -> str | None:
    """Reads the description in the source, because imports take most of the time of a help; None without one."""
    [claim, *duplicates] = plugin.claims
    # The import says better why a module cannot be read.
    with suppress(Exception):
        spec = None if duplicates else find_spec(claim.module)
        for node in ast.parse(Path(spec.origin).read_bytes()).body if spec and spec.origin else ():
            match node:
                case ast.FunctionDef(name=claim.attr):
                    return ast.get_docstring(node)
                case ast.Assign(targets=[ast.Name(id=claim.attr)], value=ast.Call(keywords=words)):
                    return next((ast.literal_eval(word.value) for word in words if word.arg == "help"), None)
    return None


def _paragraphs(docstring: str) -> str:
    """Joins each paragraph's lines, so that the terminal breaks them and not the source code."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))


def _raising(error: OneBertError) -> Callable[[], None]:
    def refuse() -> None:
        raise error

    return refuse
