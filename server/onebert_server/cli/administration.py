"""Access of `onebert keys` and `onebert audit` to a running server, or to the store itself beside its servers."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from onebert_server.cli.options import CONNECTION, ApiKey
from onebert_server.client import Change, Client, KeyFacts, KeyQuotas, MadeKey, as_dict
from onebert_store.command.options import DATA_DIR, BlobsUrl, DataDir, RegistryUrl, store_at

# Heavy imports are inside the functions: `onebert --help` imports this file.
if TYPE_CHECKING:
    from onebert_store.registry.grants import KeyRecord
    from onebert_store.registry.store import Store

# No default, unlike --url elsewhere: without a URL these commands need no running server.
ServerUrl = Annotated[
    str | None,
    CONNECTION.option(
        "A running server to ask; default: the store itself is opened, beside its servers.",
        "--url",
        metavar="URL",
        envvar="ONEBERT_URL",
    ),
]


class StoreAdmin:
    """The client's admin methods on a store's registry, with the same results."""

    def __init__(self, store: "Store") -> None:
        from onebert_store.registry.keys import Keys  # noqa: PLC0415

        self._database, self._keys = store.database, Keys(store.database)

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        tasks: Sequence[str],
        default_task: str | None,
        quotas: KeyQuotas,
        expires_at: datetime | None,
    ) -> MadeKey:
        from onebert_store.registry.grants import Grant, Quotas, Scope  # noqa: PLC0415

        allowed = Quotas(**as_dict(quotas))
        grant = Grant(name, frozenset(map(Scope, scopes)), tuple(tasks), default_task, allowed)
        record, key = self._keys.create(grant, expires_at)
        return MadeKey(key=key, **_facts(record))

    def keys(self) -> list[KeyFacts]:
        return [KeyFacts(**_facts(record)) for record in self._keys.all()]

    def revoke_key(self, key_id: str) -> None:
        self._keys.revoke(key_id)

    def audit(
        self, after: int, limit: int, task: str | None, principal: str | None, since: datetime | None
    ) -> list[Change]:
        from onebert_server.http.schemas.administration import change_of  # noqa: PLC0415
        from onebert_store.registry.feed import Feed  # noqa: PLC0415

        return list(map(change_of, Feed(self._database).audit(after, limit, task, principal, since)))


@contextmanager
def administration(
    context: typer.Context,
    url: ServerUrl = None,
    api_key: ApiKey = None,
    data_dir: DataDir = DATA_DIR,
    registry: RegistryUrl = None,
    blobs: BlobsUrl = None,
) -> Iterator[Client | StoreAdmin]:
    """Connects to the server at `url`; without a URL, or with an option that names a store, opens the store."""
    if url is not None and not _names_store(context):
        with Client(url, api_key) as client:
            yield client
        return
    from onebert_store.registry.store import join_store  # noqa: PLC0415

    with join_store(store_at(data_dir, registry, blobs)) as opened:
        yield StoreAdmin(opened)


def _names_store(context: typer.Context) -> bool:
    """Whether the command line names a store, and no server; variables may name both."""

    def given(option: str) -> bool:
        source = context.get_parameter_source(option)
        return source is not None and source.name == "COMMANDLINE"

    return not given("url") and any(map(given, ("data_dir", "registry", "blobs")))


Administration: TypeAlias = AbstractContextManager[Client | StoreAdmin]


def _facts(record: "KeyRecord") -> dict[str, Any]:
    facts = record.facts(datetime.now(UTC))
    return facts | {"quotas": KeyQuotas(**facts["quotas"])}
