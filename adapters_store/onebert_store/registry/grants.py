"""The permissions of a key: scopes, tasks and quotas, with the rules for making a key."""

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from math import isfinite
from typing import Any

from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import check_name, parse_ref

# Globs per key.
MAX_GLOBS = 64
LONGEST = timedelta(days=36_525)
_GLOB = re.compile(r"[a-z0-9*][a-z0-9._*-]{0,62}")
_MOST = 2**53


class Scope(StrEnum):
    """The scopes of a key; `admin` allows everything on the key's tasks."""

    CLASSIFY = "classify"
    UPLOAD = "upload"
    PROMOTE = "promote"
    FEEDBACK = "feedback"
    REVIEW = "review"
    ADMIN = "admin"


@dataclass(frozen=True)
class Quotas:
    """The quotas of a principal; None means no limit.

    Attributes:
        tasks: tasks with at least one version that the principal uploaded.
        bytes: total size of those versions.
        requests: classifying requests per second and replica.
        tokens: computed tokens per second and replica.
    """

    tasks: int | None = None
    bytes: int | None = None
    requests: float | None = None
    tokens: float | None = None

    @property
    def of_storage(self) -> bool:
        return self.tasks is not None or self.bytes is not None

    @cached_property
    def of_rates(self) -> bool:
        return self.requests is not None or self.tokens is not None


UNLIMITED = Quotas()


@dataclass(frozen=True)
class Grant:
    """The permissions that a key is made with.

    Attributes:
        name: the principal; keys of one name are one principal, so that a key can be replaced.
        tasks: globs; `*` matches any characters.
        default_task: the reference for requests that name no task.
    """

    name: str
    scopes: frozenset[Scope]
    tasks: tuple[str, ...] = ("*",)
    default_task: str | None = None
    quotas: Quotas = UNLIMITED

    @property
    def administers(self) -> bool:
        """Whether it allows to make keys for every task."""
        return Scope.ADMIN in self.scopes and "*" in self.tasks


@dataclass(frozen=True)
class KeyRecord:
    """A key as the registry stores it, never the key itself: the SHA-256, its first digits as `id`, times in UTC."""

    id: str
    digest: bytes
    grant: Grant
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def facts(self, now: datetime) -> dict[str, Any]:
        """Returns the key's state and all fields by name, including the grant's, but not the digest."""
        of_grant = {**asdict(self.grant), "scopes": sorted(self.grant.scopes), "tasks": list(self.grant.tasks)}
        times = {"created_at": self.created_at, "expires_at": self.expires_at, "revoked_at": self.revoked_at}
        return {"id": self.id, **of_grant, **times, "state": self.state(now)}

    def state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "valid"


def check_grant(grant: Grant, expires_at: datetime | None) -> None:
    """Raises InvalidInput if the name, a glob, the default task, a quota or the expiry breaks a rule."""
    check_name(grant.name)
    if not grant.scopes:
        raise InvalidInput(f"a key has at least one scope of {', '.join(Scope)}")
    if not 0 < len(grant.tasks) <= MAX_GLOBS:
        raise InvalidInput(f"a key is for 1 to {MAX_GLOBS} globs of tasks")
    for glob in grant.tasks:
        if not _GLOB.fullmatch(glob):
            raise InvalidInput(f"'{printable(glob)}' is not a glob: the characters of a task's name, and *")
    if grant.default_task is not None:
        task = parse_ref(grant.default_task).task
        if not any(matches(task, glob.split("*")) for glob in grant.tasks):
            raise InvalidInput("the default task is not one of the key's tasks")
    for name, limit in asdict(grant.quotas).items():
        if limit is not None and not (isfinite(limit) and 0 < limit <= _MOST):
            raise InvalidInput(f"the quota of {name} must be above 0 and at most 2^53")
    if expires_at is not None and not timedelta() < expires_at - datetime.now(UTC) < LONGEST:
        raise InvalidInput("a key expires in the future, and within a hundred years")


def matches(name: str, literals: list[str]) -> bool:
    """True if `name` is the literals in order, with any characters in between; linear in both lengths."""
    if len(literals) == 1:
        return name == literals[0]
    first, *between, last = literals
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    # The leftmost match of each literal leaves the most room for the next.
    for literal in between:
        start = name.find(literal, at, end)
        if start < 0:
            return False
        at = start + len(literal)
    return True
