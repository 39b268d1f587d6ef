"""Moves of aliases: one function for the route and for everyone else, so that no hook is forgotten."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, NamedTuple

from onebert_server.access.context import Context
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_store.errors import CheckOutdated, GateFailed
from onebert_store.registry.names import LIVE
from onebert_store.registry.records import Alias
from onebert_store.registry.target import Precondition, Target


class Move(NamedTuple):
    """A requested move of an alias, whose versions are in memory; `expected` is the alias's tag, None if it is new."""

    task: str
    alias: str
    target: Target
    expected: str | None


class Check(NamedTuple):
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


BeforeMove = Callable[[Move, Context], Awaitable[Check]]


class Moves:
    """Moves aliases; `before_move` are the hooks, `registrars` the threads for the registry."""

    def __init__(self, catalog: Catalog, before_move: Sequence[BeforeMove], registrars: Executor) -> None:
        self._catalog = catalog
        self._before_move = before_move
        self._registrars = registrars

    def _require_targets(self, move: Move, context: Context) -> None:
        """Raises GateFailed for a version that shall be live and lacks targets of the version that it was made like."""
        entry = self._catalog.directory.task(move.task, limit=0, who=context.principal)
        live = entry.aliases.get(LIVE)
        for number in unchecked(move.target, live) if live and move.alias == LIVE else ():
            if lacks := self._catalog.directory.version(move.task, number, context.principal).lacks:
                raise GateFailed(
                    f"{move.task}@{number} does not keep {', '.join(lacks)} of the version that it was trained like: "
                    "calibrate it, or force the move, and say why"
                )

    async def move(
        self, move: Move, context: Context, *, force: str | None = None, message: str | None = None
    ) -> Moved:
        """Loads the versions of a target, asks every hook, and moves the alias.

        If what a hook has read changes before the move, the hooks are asked again.

        Args:
            force: the reason to move without asking the hooks.
            message: the reason of another move.

        Raises:
            GateFailed: a version lacks targets, or a hook refuses the move.
            AliasConflict: a hook refuses it; see also `Catalog.in_memory` and `Catalog.move_alias`.
        """
        task, alias, target, expected = move
        async with self._catalog.in_memory(task, [number for number, _ in target.shares], context):
            if force is None:
                self._require_targets(move, context)
            while True:
                checks = [await check(move, context) for check in self._before_move] if force is None else []
                arguments = task, alias, target, expected, context, force, [check.read for check in checks], message
                with suppress(CheckOutdated):
                    alias_now, seq = await run_in(self._registrars, self._catalog.move_alias, *arguments)
                    return Moved(alias_now, seq, [report for check in checks for report in check.reports])
