"""The commands `onebert keys …`: create, list and revoke keys, on a running server or in the store."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from onebert_server.cli.administration import Administration, administration
from onebert_server.client import KeyFacts, KeyQuotas, as_dict
from onebert_store.command import console
from onebert_store.command.options import AsJson, duration, with_options
from onebert_store.registry.grants import Scope

_COLUMNS = ("id", "name", "scopes", "tasks", "default task", "quotas", "created", "expires", "state")

keys = typer.Typer(
    help="Make, list and revoke keys: of a running server (--url), or in a store, whose servers follow within seconds.",
    no_args_is_help=True,
)


@keys.command()
@with_options(place=administration)
def create(
    name: Annotated[str, typer.Option("--name", help="Whose it is; keys of one name are one principal.")],
    scope: Annotated[list[Scope], typer.Option("--scope", help="What it is for; may be given several times.")],
    tasks: Annotated[
        list[str],
        typer.Option("--tasks", metavar="GLOB", help="For which tasks, as 'acme-*'; may be given several times."),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="After a time, as 12h or 90d.")
    ] = None,
    default_task: Annotated[
        str | None, typer.Option("--default-task", metavar="TASK", help="What a request means that names no task.")
    ] = None,
    max_tasks: Annotated[int | None, typer.Option("--max-tasks", help="Tasks that it may have uploaded to.")] = None,
    max_bytes: Annotated[int | None, typer.Option("--max-bytes", help="Bytes that it may have stored.")] = None,
    requests: Annotated[
        float | None, typer.Option("--requests", help="Requests that classify, in a second, of each server.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option("--tokens", help="Tokens that are computed, in a second, of each server.")
    ] = None,
    *,
    place: Administration,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print the key alone; nobody can see it again.

    A key is for the scopes and tasks that are given, and for nothing else.
    """
    quotas = KeyQuotas(tasks=max_tasks, bytes=max_bytes, requests=requests, tokens=tokens)
    expires_at = datetime.now(UTC) + duration(expires) if expires else None
    with place as opened:
        created = opened.create_key(name, scope, tasks, default_task, quotas, expires_at)
    if as_json:
        console.print_json(_record(created))
        return
    console.tell(f"key {created.id} of {name}: {' '.join(created.scopes)} on {' '.join(created.tasks)}")
    # Alone on standard output and never wrapped, so that scripts can capture it.
    typer.echo(created.key)


@keys.command("list")
@with_options(place=administration)
def list_(place: Administration, as_json: AsJson = False) -> None:
    """List the keys: whose each is, what for, and until when."""
    with place as opened:
        keys = opened.keys()
    console.show(_COLUMNS, map(_row, keys), record=[_record(key) for key in keys] if as_json else None)


@keys.command()
@with_options(place=administration)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="What `onebert keys list` calls the key.")],
    *,
    place: Administration,
) -> None:
    """Revoke a key for good; every server refuses it within seconds."""
    with place as opened:
        opened.revoke_key(key_id)
    console.say(f"key {key_id} is revoked")


def _row(key: KeyFacts) -> tuple[str, ...]:
    whose = key.id, key.name, " ".join(key.scopes), " ".join(key.tasks), key.default_task or "–"
    return *whose, _quotas(key.quotas), _time(key.created_at), _time(key.expires_at), key.state


def _record(key: KeyFacts) -> dict[str, Any]:
    # The id comes first.
    return {"id": key.id} | as_dict(key)


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else "–"


def _quotas(quotas: KeyQuotas) -> str:
    units = {"tasks": " tasks", "bytes": " bytes", "requests": " requests/s", "tokens": " tokens/s"}
    allowed = ((getattr(quotas, name), unit) for name, unit in units.items())
    return ", ".join(f"{limit:,}{unit}".replace(".0 ", " ") for limit, unit in allowed if limit is not None) or "–"
