"""The commands `onebert keys …`: keys of a store's registry are made, listed and revoked."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebert_store.command import console
from onebert_store.command.options import AsJson
from onebert_store.command.store import duration
from onebert_store.command.store_options import DEFAULT, BlobsUrl, DataDir, RegistryUrl
from onebert_store.registry.grants import Grant, Quotas, Scope

if TYPE_CHECKING:
    from onebert_store.registry.grants import KeyRecord

keys = typer.Typer(
    help="Make, list and revoke keys of a store's registry. May run beside its servers, which follow within seconds.",
    no_args_is_help=True,
)


@keys.command()
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
        str | None,
        typer.Option("--default-task", metavar="TASK", help="What a request means that names no task."),
    ] = None,
    max_tasks: Annotated[int | None, typer.Option("--max-tasks", help="Tasks that it may have uploaded to.")] = None,
    max_bytes: Annotated[int | None, typer.Option("--max-bytes", help="Bytes that it may have stored.")] = None,
    requests: Annotated[
        float | None, typer.Option("--requests", help="Requests that classify, in a second, of each server.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option("--tokens", help="Tokens that are computed, in a second, of each server.")
    ] = None,
    data_dir: DataDir = DEFAULT,
    registry: RegistryUrl = None,
    blobs: BlobsUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print the key alone; nobody can see it again.

    A key is for the scopes and tasks that are given, and for nothing else.
    """
    from onebert_store.registry.keys import Keys  # noqa: PLC0415 - see `inspect`
    from onebert_store.registry.store import StoreAddress, join_store  # noqa: PLC0415

    grant = Grant(name, frozenset(scope), tuple(tasks), default_task, Quotas(max_tasks, max_bytes, requests, tokens))
    expires_at = datetime.now(UTC) + duration(expires) if expires else None
    with join_store(StoreAddress.within(data_dir, registry, blobs)) as opened:
        record, key = Keys(opened.database).create(grant, expires_at)
    if as_json:
        console.print_json({"key": key} | _facts(record))
        return
    console.err.print(f"key {record.id} of {name}: {' '.join(sorted(grant.scopes))} on {' '.join(grant.tasks)}")
    # Alone on standard output and never wrapped, so that a script may keep it.
    typer.echo(key)


@keys.command("list")
def list_(
    data_dir: DataDir = DEFAULT, registry: RegistryUrl = None, blobs: BlobsUrl = None, as_json: AsJson = False
) -> None:
    """List the keys: whose each is, what for, and until when."""
    from onebert_store.registry.keys import Keys  # noqa: PLC0415
    from onebert_store.registry.store import StoreAddress, join_store  # noqa: PLC0415

    with join_store(StoreAddress.within(data_dir, registry, blobs)) as opened:
        found = [_facts(record) for record in Keys(opened.database).all()]
    if as_json:
        console.print_json(found)
        return
    table = console.table("id", "name", "scopes", "tasks", "created", "state")
    for one in found:
        scopes, globs = (" ".join(one[field]) for field in ("scopes", "tasks"))
        table.add_row(one["id"], one["name"], scopes, globs, one["created_at"][:16], one["state"])
    console.out.print(table)


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="What `onebert keys list` calls the key.")],
    data_dir: DataDir = DEFAULT,
    registry: RegistryUrl = None,
    blobs: BlobsUrl = None,
) -> None:
    """Revoke a key for good; every server refuses it within seconds."""
    from onebert_store.registry.keys import Keys  # noqa: PLC0415
    from onebert_store.registry.store import StoreAddress, join_store  # noqa: PLC0415

    with join_store(StoreAddress.within(data_dir, registry, blobs)) as opened:
        record = Keys(opened.database).revoke(key_id)
    console.out.print(f"key {record.id} of {record.grant.name} is revoked")


def _facts(record: "KeyRecord") -> dict[str, Any]:
    """For JSON: times as ISO 8601, and of the quotas those that there are."""
    facts = record.facts
    times = {name: value.isoformat() for name, value in facts.items() if isinstance(value, datetime)}
    quotas = {name: most for name, most in facts["quotas"].items() if most is not None}
    return facts | times | {"quotas": quotas, "state": record.state(datetime.now(UTC))}
