"""Moves of aliases: one function for the route and for everyone else, so that no hook is forgotten."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, NamedTuple

from onebert_server.access.context import Context
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_store.errors import CheckOutdated
from onebert_store.registry.records import Alias
from onebert_store.registry.target import Precondition, Target


class Move(NamedTuple):
    """A requested move of an alias, whose versions are in memory; `expected` is the alias's tag, None if it is new."""

    task: str
    alias: str
    target: Target
    expected: str | None


class Check(NamedTuple):
    """The result of a hook: whether it has compared the versions, what it has read to allow the move, its reports."""

    compared: bool
    read: Precondition
    reports: Sequence[Mapping[str, Any]] = ()


class Moved(NamedTuple):
    """The alias after a move, the number of the change, and the hooks' reports of versions that passed."""

    alias: Alias
    seq: int
    reports: Sequence[Mapping[str, Any]]


BeforeMove = Callable[[Move, Context], Awaitable[Check]]


class Moves:
    """Moves aliases; `before_move` are the hooks, `registrars` the threads for the registry."""

    def __init__(self, catalog: Catalog, before_move: Sequence[BeforeMove], registrars: Executor) -> None:
        self._catalog = catalog
        self._before_move = before_move
        self._registrars = registrars

    async def move(
        self,
        move: Move,
        context: Context,
        *,
        force: str | None = None,
        unless_compared: Callable[[], None] | None = None,
    ) -> Moved:
        """Loads the versions of a target, asks every hook, and moves the alias.

        If what a hook has read changes before the move, the hooks are asked again.

        Args:
            force: the reason to move without asking the hooks.
            unless_compared: may raise if no hook has compared the versions.

        Raises:
            GateFailed, AliasConflict: a hook refuses the move; see also `Catalog.in_memory` and `Catalog.move_alias`.
        """
        task, alias, target, expected = move
        async with self._catalog.in_memory(task, [number for number, _ in target.shares], context):
            while True:
                checks = [await check(move, context) for check in self._before_move] if force is None else []
                if unless_compared is not None and not any(check.compared for check in checks):
                    unless_compared()
                arguments = task, alias, target, expected, context, force, [check.read for check in checks]
                with suppress(CheckOutdated):
                    alias_now, seq = await run_in(self._registrars, self._catalog.move_alias, *arguments)
                    return Moved(alias_now, seq, [report for check in checks for report in check.reports])
