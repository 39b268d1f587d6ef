"""What a key allows: scopes, the tasks that these are for, and how much; the rules hold wherever a key is made."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import isfinite
from typing import Any

from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import shown
from onebert_store.registry.names import check_name, parse_ref

# Globs of one key.
MAX_GLOBS = 64
LONGEST = timedelta(days=36_525)
_GLOB = re.compile(r"[a-z0-9*][a-z0-9._*-]{0,62}")
_MOST = 2**53


class Scope(StrEnum):
    """What a key is for; `admin` is for everything on its tasks."""

    CLASSIFY = "classify"
    UPLOAD = "upload"
    PROMOTE = "promote"
    ADMIN = "admin"


@dataclass(frozen=True)
class Quotas:
    """How much a principal may; None is as much as it likes.

    Attributes:
        tasks: tasks that hold a version which it has uploaded.
        bytes: sizes of those versions together.
        requests: requests that classify, in a second, of each replica.
        tokens: tokens that are computed for it, in a second, of each replica.
    """

    tasks: int | None = None
    bytes: int | None = None
    requests: float | None = None
    tokens: float | None = None

    @property
    def of_storage(self) -> bool:
        """Whether there is a quota of what is stored."""
        return self.tasks is not None or self.bytes is not None

    @property
    def of_rates(self) -> bool:
        """Whether there is a quota of what is asked in a second."""
        return self.requests is not None or self.tokens is not None


UNLIMITED = Quotas()


@dataclass(frozen=True)
class Grant:
    """What a key is made for.

    Attributes:
        name: whose it is; keys of one name are one principal, so that a key can be changed for another.
        scopes: what it allows.
        tasks: with which tasks, as globs, in which `*` stands for any characters.
        default_task: the reference that a request means which names no task.
        quotas: how much it allows.
    """

    name: str
    scopes: frozenset[Scope]
    tasks: tuple[str, ...] = ("*",)
    default_task: str | None = None
    quotas: Quotas = UNLIMITED


@dataclass(frozen=True)
class KeyRecord:
    """A key as the registry has it; never the key itself.

    Attributes:
        id: what the key is called; the first digits of its SHA-256.
        digest: its SHA-256.
        grant: what it was made for.
        created_at, expires_at, revoked_at: in UTC.
    """

    id: str
    digest: bytes
    grant: Grant
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def facts(self, now: datetime) -> dict[str, Any]:
        """Its state, and what it says by the names of its fields, the grant's among them; the digest is not."""
        of_grant = {
            **vars(self.grant),
            "scopes": sorted(self.grant.scopes),
            "tasks": list(self.grant.tasks),
            "quotas": vars(self.grant.quotas),
        }
        times = {"created_at": self.created_at, "expires_at": self.expires_at, "revoked_at": self.revoked_at}
        return {"id": self.id, **of_grant, **times, "state": self.state(now)}

    def state(self, now: datetime) -> str:
        """Whether it is `valid`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "valid"


def check_grant(grant: Grant, expires_at: datetime | None) -> None:
    """Refuses what no key may be made for.

    Raises:
        InvalidInput: the name, a glob, the default task, a quota or the end breaks a rule.
    """
    check_name(grant.name)
    if not grant.scopes:
        raise InvalidInput(f"a key has at least one scope of {', '.join(Scope)}")
    if not 0 < len(grant.tasks) <= MAX_GLOBS:
        raise InvalidInput(f"a key is for 1 to {MAX_GLOBS} globs of tasks")
    for glob in grant.tasks:
        if not _GLOB.fullmatch(glob):
            raise InvalidInput(f"'{shown(glob)}' is not a glob: the characters of a task's name, and *")
    if grant.default_task is not None:
        task = parse_ref(grant.default_task).task
        if not any(matches(task, glob.split("*")) for glob in grant.tasks):
            raise InvalidInput("the default task is not one of the key's tasks")
    for name, most in vars(grant.quotas).items():
        if most is not None and not (isfinite(most) and 0 < most <= _MOST):
            raise InvalidInput(f"the quota of {name} must be above 0 and at most 2^53")
    if expires_at is not None and not timedelta() < expires_at - datetime.now(UTC) < LONGEST:
        raise InvalidInput("a key expires in the future, and within a hundred years")


def matches(name: str, literals: list[str]) -> bool:
    """Whether a name is a glob's literals with any characters in between; takes time for what both are long.

    No regular expression: that of 64 globs takes a tenth of a second to compile.
    """
    if len(literals) == 1:
        return name == literals[0]
    first, *between, last = literals
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    # The first place of each is the best: it leaves most to those that follow.
    for literal in between:
        found = name.find(literal, at, end)
        if found < 0:
            return False
        at = found + len(literal)
    return True
