"""Principals and their rights: the one place that decides about access, for every kind of login."""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from math import inf

from onebert_store.errors import Forbidden
from onebert_store.registry.grants import UNLIMITED, Grant, Quotas, Scope, matches
from onebert_store.registry.names import no_such_task

# The principal of the server's own work: golden checks of uploads and loaded versions. No key's principal has it.
RESERVED = "(server)"
# The glob of every task. No task can have this name, so a right on "*" is a right on the whole server.
EVERY_TASK = "*"


class Action(StrEnum):
    """An action on one task or on the whole server."""

    SEE = "see"
    CLASSIFY = "classify"
    DOWNLOAD = "download"
    UPLOAD = "upload"
    PROMOTE = "promote"
    DELETE = "delete"
    KEEP = "keep"
    GIVE_FEEDBACK = "give-feedback"
    REVIEW = "review"
    MEASURE = "measure"
    ADMINISTER = "administer"


EVERY_SCOPE = frozenset(Scope)
# Scopes that allow an action; one of them is enough.
ALLOWED_BY: dict[Action, frozenset[Scope]] = {
    Action.SEE: EVERY_SCOPE,
    Action.CLASSIFY: frozenset({Scope.CLASSIFY, Scope.ADMIN}),
    # A key that only classifies does not need the weights.
    Action.DOWNLOAD: frozenset({Scope.UPLOAD, Scope.PROMOTE, Scope.ADMIN}),
    Action.UPLOAD: frozenset({Scope.UPLOAD, Scope.ADMIN}),
    Action.PROMOTE: frozenset({Scope.PROMOTE, Scope.ADMIN}),
    Action.DELETE: frozenset({Scope.ADMIN}),
    Action.KEEP: frozenset({Scope.ADMIN}),
    Action.GIVE_FEEDBACK: frozenset({Scope.FEEDBACK, Scope.REVIEW, Scope.ADMIN}),
    Action.REVIEW: frozenset({Scope.REVIEW, Scope.ADMIN}),
    # Numbers over all tasks reveal nothing to a key that sees every task; so a scraper needs no key that can change
    # one.
    Action.MEASURE: EVERY_SCOPE,
    Action.ADMINISTER: frozenset({Scope.ADMIN}),
}


@dataclass(frozen=True)
class Principal:
    """An authenticated caller.

    Attributes:
        name: used by fairness and the log; never a key itself.
        tasks: globs of the tasks that it may use; `*` stands for any characters.
        default_task: the reference for a request that names no task.
        expires: the end of a token's login, in seconds since 1970; a key's is in the table of keys.
    """

    name: str
    scopes: frozenset[Scope]
    tasks: tuple[str, ...]
    default_task: str | None = None
    quotas: Quotas = UNLIMITED
    expires: float = field(default=inf, compare=False)

    def may(self, action: Action, task: str = EVERY_TASK) -> bool:
        """Returns whether it may do this with a task, or without one with the whole server."""
        return not ALLOWED_BY[action].isdisjoint(self.scopes) and self.sees(task)

    def sees(self, task: str) -> bool:
        """Returns whether a task exists for it; an invisible task gets the same answer as a missing one."""
        return self._sees_all or any(matches(task, literals) for literals in self._globs)

    def require(self, action: Action, task: str) -> None:
        """Raises Forbidden if its scopes allow this with no task, and TaskNotFound if it does not see the task."""
        self.require_scope(action)
        if not self.sees(task):
            raise no_such_task(task)

    def require_scope(self, action: Action) -> None:
        """Raises Forbidden if its scopes allow this with no task."""
        if ALLOWED_BY[action].isdisjoint(self.scopes):
            raise Forbidden(f"this takes a key with the scope {' or '.join(sorted(ALLOWED_BY[action]))}")

    def require_all(self, action: Action) -> None:
        """Raises Forbidden if its scopes do not allow this, or if it is limited to some tasks."""
        self.require_scope(action)
        if not self._sees_all:
            raise Forbidden("this takes a key for all tasks: it is about the whole server")

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """Sorted prefixes of the names that it sees: none begins with another one, and every visible name has one."""
        beginnings: list[str] = []
        for beginning in sorted(glob.partition("*")[0] for glob in self.tasks):
            if not (beginnings and beginning.startswith(beginnings[-1])):
                beginnings.append(beginning)
        return tuple(beginnings)

    @cached_property
    def classifies_all(self) -> bool:
        """Whether it may classify with every task."""
        return self.may(Action.CLASSIFY)

    @cached_property
    def _sees_all(self) -> bool:
        return EVERY_TASK in self.tasks

    @cached_property
    def _globs(self) -> list[list[str]]:
        return [glob.split("*") for glob in self.tasks]


@lru_cache(4096)
def root(name: str) -> Principal:
    """Returns a principal that may do everything with every task."""
    return Principal(name, EVERY_SCOPE, (EVERY_TASK,))


@lru_cache(4096)
def nobody(name: str) -> Principal:
    """Returns a principal without rights, for requests without a login."""
    return Principal(name, frozenset(), ())


def holder_of(grant: Grant) -> Principal:
    """Returns the principal of a key of the registry; keys of one name are one principal."""
    return Principal(f"key:{grant.name}", grant.scopes, grant.tasks, grant.default_task, grant.quotas)


OWN_WORK = root(RESERVED)
