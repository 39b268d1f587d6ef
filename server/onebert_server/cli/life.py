"""The commands `download` and `delete`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from onebert_server.cli.completion import references
from onebert_server.cli.options import OUTPUT, REFERENCE, URL, ApiKey, Url
from onebert_server.cli.refusals import Message
from onebert_server.client import Client
from onebert_server.client.references import tag_of, version_of
from onebert_store.command import console
from onebert_store.errors import InvalidInput
from onebert_store.registry.names import parse_ref


def download(
    refs: Annotated[
        list[str] | None, typer.Argument(help=f"One or several: {REFERENCE}", metavar="TASK", autocompletion=references)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every version of the tasks that are named, or of all tasks.")
    ] = False,
    out: Annotated[
        Path | None,
        OUTPUT.option(
            "The file to write, or the folder where there are several; default TASK-VERSION.safetensors here.",
            metavar="PATH",
        ),
    ] = None,
    url: Url = URL,
    api_key: ApiKey = None,
) -> None:
    """Download the delta files of versions, byte for byte what their digests are of; no file is overwritten.

    Of several, a file that is there already and has the version's digest is passed over.
    """
    if not refs and not everything:
        raise typer.BadParameter("name one or several tasks, or download all of them with --all")
    with Client(url, api_key) as client:
        wanted = _every_version(client, refs) if everything else [version_of(client, ref) for ref in refs or ()]
        several = everything or len(wanted) > 1 or (out is not None and out.is_dir())
        if several and out is not None and not out.is_dir():
            raise InvalidInput(f"{out} is not a folder; name one for {len(wanted)} files")
        for task, version in wanted:
            path = (out or Path()) / f"{task}-{version}.safetensors" if several or out is None else out
            _download(client, task, version, path, several)


def delete(
    ref: Annotated[
        str,
        typer.Argument(
            help="name@3: a version; name@alias: an alias; name with --all: the whole task.",
            metavar="TASK",
            autocompletion=references,
        ),
    ],
    everything: Annotated[
        bool, typer.Option("--all", help="Delete the whole task: its aliases and all its versions.")
    ] = False,
    message: Message = None,
    yes: Annotated[bool, typer.Option("--yes", help="Answer the question whether a whole task shall go.")] = False,
    url: Url = URL,
    api_key: ApiKey = None,
) -> None:
    """Delete an alias, a version that no alias points at, or a whole task. Version numbers are never used again."""
    parsed = parse_ref(ref)
    if "@" not in ref and not everything:
        raise typer.BadParameter(f"to delete all of {ref}: onebert delete {ref} --all; one version: {ref}@3")
    if "@" in ref and everything:
        raise typer.BadParameter(f"{ref} is deleted without --all, which deletes the whole of {parsed.task}")
    with Client(url, api_key) as client:
        facts = client.task(parsed.task)
        versions = f"with {len(facts.versions)} version{'' if len(facts.versions) == 1 else 's'}"
        if everything and not yes:
            console.confirm(f"{ref} goes for good, {versions}", "say --yes")
        if everything:
            client.delete_task(parsed.task, message=message)
        elif parsed.version is not None:
            client.delete_version(parsed.task, parsed.version, message=message)
        elif parsed.alias is not None:
            client.delete_alias(parsed.task, parsed.alias, tag_of(facts, parsed.alias), message=message)
    console.say(f"{ref}: deleted {versions if everything else ''}".rstrip())


def _every_version(client: Client, names: Sequence[str] | None) -> list[tuple[str, int]]:
    tasks = client.tasks()
    known = {task.name for task in tasks}
    if unknown := [name for name in names or () if name not in known]:
        raise InvalidInput(f"--all takes names of tasks, and there is no task {unknown[0]}")
    return [(task.name, version) for task in tasks if not names or task.name in names for version in task.versions]


def _download(client: Client, task: str, version: int, path: Path, several: bool) -> None:
    from onebert_store.disk import write_whole  # noqa: PLC0415
    from onebert_store.file.format import load, loads  # noqa: PLC0415

    if path.exists():
        if several and load(path).digest == client.version(task, version).digest:
            console.say(f"{path}: is there already")
            return
        raise InvalidInput(f"{path} exists; name another place with --out")
    content = client.download(task, version)
    digest = loads(content).digest
    write_whole(path, content)
    console.say(f"{path}: {task}@{version}, {len(content):,} bytes ({digest[:19]}…)")
