"""`onebert audit`: who changed what and when, from a running server or the store."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from onebert_server.cli.administration import Administration, StoreAdmin, administration
from onebert_server.client import Change, Client, as_dict
from onebert_server.contract.moves import why
from onebert_store.command import console
from onebert_store.command.options import duration, with_options
from onebert_store.errors import InvalidInput

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
                # One object per line, so that a long trail can be read as a stream.
                typer.echo(json.dumps(as_dict(change), ensure_ascii=False))
            return
        rows = (
            (time_of(entry.at), entry.principal, entry.action.replace("-", " "), _change_of(entry), entry.request)
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


def _change_of(change: Change) -> str:
    """A change in words: `acme-tone@live 1 → 2`, `acme-tone version 2`, `ci/3f2a…`, and why it was made."""
    name = f"{change.task}@{change.alias}" if change.alias else change.task or ""
    return ", ".join(filter(None, (f"{name} {change.what}".strip(), why(change))))
