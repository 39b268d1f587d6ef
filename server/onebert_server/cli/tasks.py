"""The commands `push` and `promote`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from onebert_server.cli.moving import before, json_of, move, place_of, print_move
from onebert_server.cli.options import URL, ApiKey, AsJson, TaskName, Url, number_of
from onebert_server.cli.refusals import Force, Message, require_reason, showing_refusals
from onebert_server.client import Client, TargetFacts, as_dict
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.command import console
from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE


def push(
    file: Annotated[Path, typer.Argument(help="The delta file that `onebert train` wrote.", metavar="FILE")],
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Task to add the version to; default: the one that the file was trained for."
        ),
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make the new version live at once.")] = False,
    message: Message = None,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Upload a delta as the next version of a task.

    The server checks the file, and compares its own answers with those that the trainer recorded, before it takes it.
    The first version of a task is live; a later one becomes live with --promote or with `onebert promote`. The same
    content is the same version, however often it is pushed.
    """
    from onebert_store.file.format import load_with_bytes  # noqa: PLC0415

    if message is not None and not promote:
        raise typer.BadParameter("--message says why the version becomes live, so it goes with --promote")
    delta, content = load_with_bytes(file)
    trained_for = delta.manifest.training.get("task")
    name = task or (trained_for if isinstance(trained_for, str) else None)
    if name is None:
        raise InvalidInput("the file does not name its task; use --task")
    if isinstance(trained_for, str) and trained_for != name:
        console.tell(f"note: {file.name} was trained for {printable(trained_for, 80)}")
    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        # A first version becomes live by the move, which has the reason.
        pushed = client.push(name, content, live=not promote)
        place = place_of(client, name, LIVE) if promote else None
        moved = move(client, name, LIVE, place, pushed.version, message=message) if promote else None
        status = client.status(name)
    if as_json:
        console.print_json(as_dict(pushed) | ({"promoted": json_of(moved)} if moved else {}))
        return
    state = "is version" if pushed.created else "was already version"
    console.say(f"{name}: {file.name} {state} {pushed.version} ({pushed.digest[:19]}…)")
    if moved:
        print_move(moved)
    elif status.live and status.live.version == pushed.version:
        data = delta.manifest.training.get("data")
        texts = '--pair "a text" "another"' if isinstance(data, Mapping) and data.get("pairs") is True else '"a text"'
        console.say(f"it is live: `onebert classify {name} {texts}{_at(url)}` asks it")
    else:
        console.say(f"live is {status.live.words if status.live else 'no version'}")
        if status.next:
            console.say(f"next: {status.next}{_at(url)}")


def _at(url: str) -> str:
    return "" if url == (os.environ.get("ONEBERT_URL") or URL) else f" --url {url}"


def promote(
    task: TaskName,
    version: Annotated[
        str | None, typer.Argument(help="Version that the alias shall point at.", metavar="VERSION")
    ] = None,
    alias: Annotated[
        str, typer.Option(metavar="ALIAS", help="Alias to move; one that does not exist is created.")
    ] = LIVE,
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback",
            help="Go back to the version that was live before; a second time goes one further back.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Answer the question whether a rollback shall end a split, too.")
    ] = False,
    force: Force = False,
    message: Message = None,
    wait_all: Annotated[
        bool, typer.Option("--wait-all", help="Return when every live server of the registry shows the move.")
    ] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Point an alias of a task at a version, or roll it back.

    If somebody else moves the alias at the same time, the command fails and changes nothing. Requests under way are
    answered by the version that they began with. The scores that the trainer measured of both versions are shown, and
    labels that are not the same. A version that does not pass the task's gate is refused with each check.
    """
    require_reason(force, message)
    if "@" in task:
        name, _, other = task.partition("@")
        argument = "--rollback" if rollback else version or other
        raise typer.BadParameter(f"{task} is not the name of a task: write `onebert promote {name} {argument}`")
    if (version is None) != rollback:
        raise typer.BadParameter("give a VERSION, or --rollback")
    # The task's gate may have two thousand rows.
    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        to: int | TargetFacts
        if version is not None:
            place, to = place_of(client, task, alias), number_of(version)
        else:
            now = client.alias(task, alias)
            place, to = now, before(now, yes)
        with showing_refusals(as_json):
            moved = move(client, task, alias, place, to, "all" if wait_all else None, message, force)
    print_move(moved, as_json)
