"""Moves of aliases: one function for the route and for everyone else, so that no hook is forgotten."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from onebert_server.access.context import Context
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_store.errors import CheckOutdated, GateFailed, OneBertError
from onebert_store.registry.names import LIVE
from onebert_store.registry.records import Alias
from onebert_store.registry.target import Precondition, Target

# Milliseconds that the checks of a forced move get, and at most half of its own time.
FORCED_MS = 10_000.0


class RequestedMove(NamedTuple):
    """A requested move of an alias, whose versions are in memory; `expected` is the alias's tag, None if it is new."""

    task: str
    alias: str
    target: Target
    expected: str | None


class Allowed(NamedTuple):
    """The result of a hook: what it has read to allow the move, and its reports."""

    read: Precondition
    reports: Sequence[Mapping[str, Any]] = ()


class Moved(NamedTuple):
    """The alias after a move, the number of the change, and the hooks' reports of versions that passed."""

    alias: Alias
    seq: int
    reports: Sequence[Mapping[str, Any]]


def unchecked(target: Target, at: Alias | None) -> list[int]:
    """The versions that shall answer and need checks: older ones that answered at this alias need none."""
    ungated = at.ungated if at else set[int]()
    return [version for version, _ in target.shares if version not in ungated]


BeforeMove = Callable[[RequestedMove, Context], Awaitable[Allowed]]


class Moves:
    """Moves aliases; `before_move` are the hooks, `registrars` the threads for the registry."""

    def __init__(self, catalog: Catalog, before_move: Sequence[BeforeMove], registrars: Executor) -> None:
        self._catalog = catalog
        self._before_move = before_move
        self._registrars = registrars

    def _require_targets(self, move: RequestedMove, context: Context) -> None:
        """Raises GateFailed for a version that shall be live and lacks targets of the version that it was made like."""
        entry = self._catalog.directory.task(move.task, limit=0, who=context.principal)
        live = entry.aliases.get(LIVE)
        for number in unchecked(move.target, live) if live and move.alias == LIVE else ():
            if lacks := self._catalog.directory.version(move.task, number, context.principal).lacks:
                raise GateFailed(
                    f"{move.task}@{number} does not keep {', '.join(lacks)} of the version that it was trained like: "
                    "calibrate it, or force the move, and say why",
                    failed=[f"{number} does not keep {target}" for target in lacks],
                )

    async def move(self, move: RequestedMove, context: Context, *, force: bool = False) -> Moved:
        """Loads the versions of a target, asks every hook, and moves the alias.

        If what a hook has read changes before the move, the hooks are asked again.

        Args:
            force: moves the alias whatever the hooks say; the change keeps what they say.

        Raises:
            GateFailed: a version lacks targets, or a hook refuses the move.
            AliasConflict: a hook refuses it; see also `Catalog.in_memory` and `Catalog.move_alias`.
        """
        task, alias, target, expected = move
        asked = context.within(min(FORCED_MS, 500 * (context.deadline - context.arrived))) if force else context
        async with self._catalog.in_memory(task, [number for number, _ in target.shares], context):
            while True:
                checks, failed = list[Allowed](), list[str]() if force else None
                with _noting(failed):
                    self._require_targets(move, asked)
                for check in self._before_move:
                    with _noting(failed):
                        checks.append(await check(move, asked))
                arguments = task, alias, target, expected, context, [check.read for check in checks], failed
                with suppress(CheckOutdated):
                    alias_now, seq = await run_in(self._registrars, self._catalog.move_alias, *arguments)
                    return Moved(alias_now, seq, [report for check in checks for report in check.reports])


@contextmanager
def _noting(failed: list[str] | None) -> Iterator[None]:
    """Adds what refuses the move to a list; without one it is raised."""
    try:
        yield
    except OneBertError as error:
        if failed is None:
            raise
        failed += error.failed if isinstance(error, GateFailed) else [f"not judged: {error.detail}"]
