"""Who asks, and what it may do: the one place that decides about access, whatever the caller proved itself by."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache

from onebert_store.errors import Forbidden
from onebert_store.registry.grants import UNLIMITED, Grant, Quotas, Scope, matches
from onebert_store.registry.names import no_such_task

# The principal of the server's own work: proofs of uploads and of loaded versions. No key's principal looks like it.
RESERVED = "(server)"
# The glob of every task. It is no name of a task, so that who may do something to "*" may do it to the whole server.
EVERY_TASK = "*"


class Action(StrEnum):
    """What a request wants to do, with one task or with the whole server."""

    SEE = "see"
    CLASSIFY = "classify"
    DOWNLOAD = "download"
    UPLOAD = "upload"
    PROMOTE = "promote"
    DELETE = "delete"
    MEASURE = "measure"
    ADMINISTER = "administer"


EVERY_SCOPE = frozenset(Scope)
# A scope that an action takes: one of these is enough.
ALLOWED_BY: dict[Action, frozenset[Scope]] = {
    Action.SEE: EVERY_SCOPE,
    Action.CLASSIFY: frozenset({Scope.CLASSIFY, Scope.ADMIN}),
    # Whoever only asks for answers has no business with the weights.
    Action.DOWNLOAD: frozenset({Scope.UPLOAD, Scope.PROMOTE, Scope.ADMIN}),
    Action.UPLOAD: frozenset({Scope.UPLOAD, Scope.ADMIN}),
    Action.PROMOTE: frozenset({Scope.PROMOTE, Scope.ADMIN}),
    Action.DELETE: frozenset({Scope.ADMIN}),
    # Numbers over all tasks tell nothing new to who may see every task; so a scraper needs no key that can change any.
    Action.MEASURE: EVERY_SCOPE,
    Action.ADMINISTER: frozenset({Scope.ADMIN}),
}


@dataclass(frozen=True)
class Principal:
    """Who asks.

    Attributes:
        name: what fairness counts by and what the log says; never a key itself.
        scopes: what it may do.
        tasks: with which tasks, as globs, in which `*` stands for any characters.
        default_task: the reference that it means by a request which names no task.
        quotas: how much it may.
    """

    name: str
    scopes: frozenset[Scope]
    tasks: tuple[str, ...]
    default_task: str | None = None
    quotas: Quotas = UNLIMITED

    def __hash__(self) -> int:
        # Principals are looked up for every question that a front end sends; equal ones have equal names.
        return hash(self.name)

    def may(self, action: Action, task: str = EVERY_TASK) -> bool:
        """Whether it may do this with a task; without one, with the whole server."""
        return not ALLOWED_BY[action].isdisjoint(self.scopes) and self.sees(task)

    def sees(self, task: str) -> bool:
        """Whether a task exists for it; what it does not see answers as what nobody has made."""
        return self._sees_all or any(matches(task, literals) for literals in self._globs)

    def require(self, action: Action, task: str) -> None:
        """Refuses what it may not do with a task, whether or not there is such a task.

        Raises:
            Forbidden: its scopes do not allow this with any task.
            TaskNotFound: the task is none of its own.
        """
        self.require_scope(action)
        if not self.sees(task):
            raise no_such_task(task)

    def require_scope(self, action: Action) -> None:
        """Refuses what it may not do with any task.

        Raises:
            Forbidden: its scopes do not allow this.
        """
        if ALLOWED_BY[action].isdisjoint(self.scopes):
            raise Forbidden(f"this takes a key with the scope {' or '.join(sorted(ALLOWED_BY[action]))}")

    def require_all(self, action: Action) -> None:
        """Refuses what concerns the whole server.

        Raises:
            Forbidden: its scopes do not allow this, or it is limited to some tasks.
        """
        self.require_scope(action)
        if not self._sees_all:
            raise Forbidden("this takes a key for all tasks: it is about the whole server")

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """What the names of its tasks begin with, in order, none of these with another; no other name is its own."""
        found: list[str] = []
        for beginning in sorted(glob.partition("*")[0] for glob in self.tasks):
            if not (found and beginning.startswith(found[-1])):
                found.append(beginning)
        return tuple(found)

    @cached_property
    def _sees_all(self) -> bool:
        return EVERY_TASK in self.tasks

    @cached_property
    def _globs(self) -> list[list[str]]:
        return [glob.split("*") for glob in self.tasks]


@lru_cache(4096)
def root(name: str) -> Principal:
    """Who may do everything with every task."""
    return Principal(name, EVERY_SCOPE, (EVERY_TASK,))


@lru_cache(4096)
def nobody(name: str) -> Principal:
    """Who has proved nothing, and asks what is open to all."""
    return Principal(name, frozenset(), ())


def holder_of(grant: Grant) -> Principal:
    """Who comes with a key of the registry: keys of one name are one principal."""
    return Principal(f"key:{grant.name}", grant.scopes, grant.tasks, grant.default_task, grant.quotas)


OWN_WORK = root(RESERVED)
