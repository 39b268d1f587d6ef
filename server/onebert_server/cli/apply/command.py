"""`onebert apply`: prints the difference between a file and a server, and takes it away."""

from pathlib import Path
from typing import Annotated

import typer

from onebert_server.cli.options import INPUT, URL, ApiKey, Url
from onebert_server.cli.refusals import Message
from onebert_store.command import console
from onebert_store.errors import InvalidInput

# Exit code of --dry-run where there is a difference; 1 is an error and 2 wrong usage, as of every command.
DIFFERENT = 3


def apply(
    file: Annotated[
        Path,
        INPUT.option("The tasks as they shall be, in TOML; paths in it are beside it.", "--file", "-f", metavar="FILE"),
    ],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help=f"Print the difference and change nothing; the exit code is 0 without one, {DIFFERENT} with one.",
        ),
    ] = False,
    message: Message = None,
    url: Url = URL,
    api_key: ApiKey = None,
) -> None:
    """Make a server equal to a file: versions, aliases with splits and shadows, gates, kept answers.

    The difference is printed first. A wrong file changes nothing. A task stops where its gate refuses, or where
    somebody else has moved it meanwhile; the others go on, and the exit code is 1. Tasks, aliases, gates and kept
    answers outside the file stay as they are; the value `false` deletes an alias, a gate or kept answers.
    `onebert status --as-toml` writes the file of a server.
    """
    from onebert_server.cli.apply.plan import make_plan, say_plan, walk  # noqa: PLC0415
    from onebert_server.client import Client  # noqa: PLC0415
    from onebert_server.limits import MAX_REQUEST_TIMEOUT  # noqa: PLC0415

    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        try:
            plan = make_plan(client, file, message)
        except InvalidInput as error:
            for line in error.detail.splitlines():
                console.print_error(f"{file.name}: {line}")
            raise typer.Exit(1) from None
        say_plan(plan)
        if dry_run:
            raise typer.Exit(DIFFERENT if plan.steps else 0)
        if plan.steps and not walk(client, plan):
            raise typer.Exit(1)
