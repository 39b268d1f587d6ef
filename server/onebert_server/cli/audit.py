"""`onebert audit`: who changed what and when, from a running server or the store."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from onebert_server.cli.administration import Administration, StoreAdmin, administration
from onebert_server.client import Change, Client, as_dict
from onebert_store.command import console
from onebert_store.command.options import duration, with_options
from onebert_store.errors import InvalidInput, TaskNotFound
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import no_such_task

PAGE = 1000
TIME = "time (UTC)"
_AGO = re.compile(r"\d+[smhd]")


@with_options(place=administration)
def audit(
    task: Annotated[str | None, typer.Option("--task", help="Changes of this task alone.")] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", help="Changes that this principal made, as key:ci.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Since then: an ISO time, or as 24h or 7d ago.")
    ] = None,
    *,
    place: Administration,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead of a table.")] = False,
) -> None:
    """List who changed what, the oldest change first."""
    filters = {"task": task, "principal": principal, "since": _time(since) if since else None}
    with place as opened:
        changes = pages(opened, filters)
        if as_json:
            for change in changes:
                # One object per line, so that a long trail can be read as a stream. The name comes last.
                fields = as_dict(change)
                typer.echo(json.dumps(fields | {"name": fields.pop("name")}, ensure_ascii=False))
            return
        rows = (
            (time_of(entry.at), entry.principal, action_of(entry), _change_of(entry), entry.request)
            for entry in changes
        )
        console.show((TIME, "principal", "action", "what", "request"), rows)


def time_of(at: datetime) -> str:
    """A time for a column with the head `TIME`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def pages(place: Client | StoreAdmin, filters: dict[str, Any]) -> Iterator[Change]:
    """All changes that match the filters of `Client.audit`, oldest first, fetched page by page."""
    after = 0
    while page := place.audit(after, PAGE, **filters):
        yield from page
        after = page[-1].seq


def _time(text: str) -> datetime:
    if _AGO.fullmatch(text):
        return datetime.now(UTC) - duration(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("--since is an ISO time as 2026-01-31T12:00, or as 24h or 7d") from None
    return time if time.tzinfo else time.astimezone()


def action_of(change: Change) -> str:
    """The action, in words."""
    return "roll back" if change.rolled_back else change.action.replace("-", " ")


def forced_of(change: Change) -> str:
    """Why a move was made, behind a comma; empty for other changes."""
    return f", {printable(change.reason, 256)}" if change.reason else ""


def _change_of(change: Change) -> str:
    """The target of a change: `acme-tone@live 1 → 2`, `acme-tone@2`, `ci/3f2a…`."""
    if change.key:
        return change.key
    name = f"{change.task}@{change.alias}" if change.alias else str(change.task)
    if change.alias:
        return f"{name} {change.what}{forced_of(change)}"
    if change.name:
        return f"{change.task} → {change.name}"
    version = f"version {change.version}" if change.version else ""
    return f"{name} {version}".strip()


def history(client: Client, task: str) -> list[Change]:
    """The history of the task that has a name now (or had it until its deletion), under all its names.

    Raises:
        TaskNotFound: no task has the name; the message gives the new name of a renamed task.
    """
    changes: list[Change] = []
    name: str | None = task
    until = None
    while name is not None:
        newer = [change for change in pages(client, {"task": name}) if until is None or change.seq < until]
        # A rename moves a name between tasks: earlier changes under the name belong to another task.
        renames = [place for place, change in enumerate(newer) if change.name is not None]
        last = newer[renames[-1]] if renames else None
        came = last is not None and last.name == name
        newer = newer[renames[-1] + (not came) :] if renames else newer
        if last is not None and not newer:
            raise TaskNotFound(f"there is no task {task} any more: it was renamed to {last.name}")
        changes = newer + changes
        name, until = (last.task, last.seq) if last is not None and came else (None, None)
    if not changes:
        raise no_such_task(task)
    return changes
