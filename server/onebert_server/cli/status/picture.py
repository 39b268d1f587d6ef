"""Facts of one task for `onebert status TASK`, from a server or from a store."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from onebert_server.cli.compare.measured import training_of
from onebert_server.client import Client, ShadowAgreement, TaskInForce, VerdictsResponse, as_dict
from onebert_store.errors import OneBertError

# Versions that are listed: the newest, and all that an alias means.
NEWEST = 10

T = TypeVar("T")


class VersionLine(NamedTuple):
    """One version; `training` has its score and its data, `state` says why it does not answer."""

    version: int
    created_at: datetime
    method: str | None
    labels: int | None
    training: dict[str, Any]
    state: str = ""


class Picture(NamedTuple):
    """Everything that is shown of one task; only a server has counted agreements and verdicts."""

    status: TaskInForce
    versions: Sequence[VersionLine]
    shadows: Sequence[ShadowAgreement] = ()
    verdicts: Sequence[VerdictsResponse] = ()

    @property
    def record(self) -> dict[str, Any]:
        """The picture as a JSON value."""
        lines = [line._asdict() for line in self.versions]
        counted = {name: list(map(as_dict, getattr(self, name))) for name in ("shadows", "verdicts")}
        return as_dict(self.status) | {"versions": lines} | counted


def picture_of(client: Client, task: str) -> Picture:
    """Asks a server for all that is in force for a task."""
    status, facts = client.status(task), client.task(task)
    wanted = in_force(status, [version.version for version in facts.versions])
    versions = [
        VersionLine(
            version.version,
            version.created_at,
            version.method,
            version.labels,
            training_of(client, task, version.version),
            "" if version.status != "unavailable" else f"unavailable: {version.reason or ''}",
        )
        for version in facts.versions
        if version.version in wanted
    ]
    rollouts = [place.alias for place in status.aliases if place.target is not None]
    shadows = [agreement for alias in rollouts for agreement in _installed(client.shadows, task, alias) or ()]
    verdicts = [judged for alias in rollouts if (judged := _installed(client.verdicts, task, alias))]
    return Picture(status, versions, shadows, verdicts)


def in_force(status: TaskInForce, numbers: Sequence[int]) -> set[int]:
    """The numbers of the versions that an alias means, and of the newest."""
    targets = [place.target for place in status.aliases if place.target]
    versions = {place.version for place in status.aliases}
    versions |= {int(number) for target in targets for number in target.split}
    versions |= {shadow.version for target in targets for shadow in target.shadow or ()}
    return versions | set(sorted(numbers)[-NEWEST:])


def _installed(ask: Callable[[str, str], T], task: str, alias: str) -> T | None:
    """Asks a route of an extension; returns None if the server does not have it."""
    try:
        return ask(task, alias)
    except OneBertError as error:
        if error.code != "not-found":
            raise
        return None
