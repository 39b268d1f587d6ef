"""The commands `push`, `tasks` and `promote`."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onebert_server.cli.compare.measured import measure, training_of
from onebert_server.cli.completion import task_names
from onebert_server.cli.moving import before, json_of, move, print_move
from onebert_server.cli.options import URL, ApiKey, AsJson, TaskName, Url, number_of
from onebert_server.cli.refusals import Force, Message, require_reason, showing_refusals
from onebert_server.client import Client, TaskFacts, TaskSummary, VersionSummary, as_dict
from onebert_server.contract.moves import meaning
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

    delta, content = load_with_bytes(file)
    trained_for = delta.manifest.training.get("task")
    name = task or (trained_for if isinstance(trained_for, str) else None)
    if name is None:
        raise InvalidInput("the file does not name its task; use --task")
    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        pushed = client.push(name, content)
        moved = move(client, name, LIVE, pushed.version) if promote else None
        live = client.task(name).aliases.get(LIVE)
    if as_json:
        console.print_json(as_dict(pushed) | ({"promoted": json_of(moved)} if moved else {}))
        return
    state = "is version" if pushed.created else "was already version"
    console.say(f"{name}: {file.name} {state} {pushed.version} ({pushed.digest[:19]}…)")
    if moved:
        print_move(moved)
    elif live == pushed.version:
        data = delta.manifest.training.get("data")
        texts = '--pair "a text" "another"' if isinstance(data, Mapping) and data.get("pairs") is True else '"a text"'
        console.say(f"it is live: `onebert classify {name} {texts}{_at(url)}` asks it")
    else:
        console.say(f"next: onebert promote {name} {pushed.version}{_at(url)}  (live is {live or 'no version'})")


def _at(url: str) -> str:
    """The --url option for a suggested command, if the server is not the default one."""
    return "" if url == (os.environ.get("ONEBERT_URL") or URL) else f" --url {url}"


def tasks(
    task: Annotated[
        str | None, typer.Argument(help="Show the versions of this task.", metavar="TASK", autocompletion=task_names)
    ] = None,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks of a server, or the versions of one task with what each was trained on and how good it was."""
    with Client(url, api_key) as client:
        if task is None:
            listed, heads = client.tasks(), ("task", "live", "versions", "aliases")
            record = [as_dict(summary) for summary in listed] if as_json else None
            console.show(heads, map(_task_row, listed), ("live", "versions"), record)
            return
        facts = client.task(task)
        training = {v.version: training_of(client, task, v.version) for v in facts.versions}
    versions = [as_dict(v) | {"training": training[v.version]} for v in facts.versions]
    _show_versions(facts, training, as_dict(facts) | {"versions": versions} if as_json else None)


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
            help="Move the alias back to where it was before; a second time, after a question, undoes the first.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Answer the question whether a version that was rolled back shall come back.")
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
        to = before(client, task, alias, yes) if version is None else number_of(version)
        with showing_refusals(as_json):
            moved = move(client, task, alias, to, "all" if wait_all else None, message)
    print_move(moved, as_json)


def _answering(facts: TaskFacts, alias: str) -> Iterable[str]:
    """The numbers of the versions that answer an alias."""
    target = facts.targets.get(alias)
    return target.split if target else [str(facts.aliases[alias])]


def _task_row(task: TaskSummary) -> tuple[str, ...]:
    aliases = [
        f"{name} → {meaning(task.targets.get(name), at)}" + (f" (before: {before})" if before else "")
        for name, at in task.aliases.items()
        if (before := task.previous.get(name)) or name != LIVE
    ]
    live = meaning(task.targets.get(LIVE), task.aliases[LIVE]) if LIVE in task.aliases else "–"
    return task.name, live, str(len(task.versions)), ", ".join(aliases)


def _show_versions(facts: TaskFacts, training: Mapping[int, Mapping[str, Any]], record: Any) -> None:
    measured = {measure(known) for known in training.values() if "score" in known}
    # If all versions have the same measure, its name is the column's head; otherwise it precedes each score.
    head = printable(measured.pop()) if len(measured) == 1 else "score"
    answering = all(v.status != "unavailable" for v in facts.versions)

    def row(v: VersionSummary) -> tuple[str, ...]:
        known = training[v.version]
        name = printable(f"{measure(known)} ") if head == "score" and "score" in known else ""
        return (
            str(v.version),
            ", ".join(alias for alias in facts.aliases if str(v.version) in _answering(facts, alias)),
            f"{name}{known['score']:.4f}" if "score" in known else "–",
            printable(str(known.get("data", "–"))),
            printable(v.method or "–"),
            "–" if v.labels is None else str(v.labels),
            f"{v.created_at:%Y-%m-%d}",
            *(() if answering else (printable(f"{v.status}: {v.reason}" if v.reason else v.status),)),
        )

    columns = ("version", "aliases", head, "data", "method", "labels", "created", *(() if answering else ("status",)))
    console.show(columns, map(row, facts.versions), ("version", head, "labels"), record)
