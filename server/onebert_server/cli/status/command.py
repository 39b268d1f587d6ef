"""`onebert status`: what is in force, of all tasks or of one, from a running server or a store at rest."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from onebert_server.cli.completion import task_names
from onebert_server.cli.options import URL, ApiKey, AsJson, Url
from onebert_server.cli.status.one import shown
from onebert_server.cli.status.picture import Picture, picture_of
from onebert_server.cli.status.tables import overview
from onebert_server.client import Client, TaskStatus, as_dict
from onebert_store.command import console
from onebert_store.command.options import DATA_DIR, Panel, store_at
from onebert_store.errors import OneBertError

# Seconds between two pictures of `--watch`.
EVERY = 2.0
_REST = Panel("A store at rest, in place of a server")

Source = tuple[Callable[[], list[TaskStatus]], Callable[[str], Picture]]
"""Reads the status of all tasks, and the picture of one."""


def status(
    task: Annotated[
        str | None, typer.Argument(help="One task; default: all.", metavar="TASK", autocompletion=task_names)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds, until Ctrl-C.")] = False,
    as_toml: Annotated[bool, typer.Option("--as-toml", help="Print the file of `onebert apply` for a server.")] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    # They read no variables: a server is asked unless one of these options is given.
    data_dir: Annotated[Path | None, _REST.option("Its folder.", "--data-dir", metavar="FOLDER")] = None,
    registry: Annotated[str | None, _REST.option("Its database.", "--registry", metavar="URL")] = None,
    blobs: Annotated[str | None, _REST.option("Where its files are.", "--blobs", metavar="URL")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in force: of every task at one glance, or of one task with its last moves and what to do next.

    The list has the meaning of `live`, score, requests, shares of abstentions and cut texts, alarm, gate, kept answers,
    new feedback, and the last move. One task shows its aliases, thresholds, shadows, verdicts and versions, too. A
    store at rest has no traffic and no alarms.
    """
    if watch and (as_json or not console.out.is_terminal):
        raise typer.BadParameter("--watch is for a terminal, and not for JSON")
    rest = (data_dir, registry, blobs) if data_dir or registry or blobs else None
    if as_toml:
        from onebert_server.cli.apply.written import written  # noqa: PLC0415

        if rest or watch or as_json:
            raise typer.BadParameter("--as-toml is for a running server, and neither for --watch nor --json")
        with Client(url, api_key) as client:
            # All or nothing: half of a file would be applied as if it were whole.
            typer.echo("".join(written(client, task)), nl=False)
        return
    with _source(url, api_key, rest) as (status_of_all, picture_of_task):
        if as_json:
            console.print_json(picture_of_task(task).record if task else list(map(as_dict, status_of_all())))
            return

        def picture() -> RenderableType:
            return shown(picture_of_task(task)) if task else overview(status_of_all())

        if watch:
            refreshed(picture, lambda: time.sleep(EVERY))
        else:
            console.out.print(picture())


def refreshed(picture: Callable[[], RenderableType], pause: Callable[[], Any]) -> None:
    """Shows a picture anew after each pause until Ctrl-C; goes on when a server comes back."""
    with suppress(KeyboardInterrupt), Live(console=console.out, auto_refresh=False) as live:
        while True:
            try:
                live.update(picture(), refresh=True)
            except OneBertError as error:
                live.update(Text(f"error: {error.detail}"), refresh=True)
            pause()


@contextmanager
def _source(url: str, api_key: str | None, rest: tuple[Path | None, str | None, str | None] | None) -> Iterator[Source]:
    if rest is None:
        with Client(url, api_key) as client:
            yield client.status, lambda task: picture_of(client, task)
        return
    from onebert_server.cli.status.at_rest import StoreStatus  # noqa: PLC0415
    from onebert_store.registry.store import join_store  # noqa: PLC0415

    data_dir, registry, blobs = rest
    with join_store(store_at(data_dir or DATA_DIR, registry, blobs)) as store:
        stored = StoreStatus(store)
        yield stored.tasks, stored.task
