"""Keys and the audit trail."""

from datetime import datetime
from typing import Annotated

from onebert_server.contract.declared import GLOB, NAME, REF, STRICT, Declared, Rule
from onebert_server.contract.tasks import TargetFacts
from onebert_server.limits import MAX_REF

Ref = Annotated[str, Rule("`name`, `name@3` or `name@alias`", pattern=REF, min_length=1, max_length=MAX_REF)]
# Globs per key.
MAX_GLOBS = 64


class KeyQuotas(Declared, frozen=True, kw_only=True, omit_defaults=True):
    """How much a key allows; null is as much as it likes."""

    _config = STRICT

    tasks: Annotated[int | None, Rule("tasks that hold versions uploaded with it", ge=1, lt=2**53)] = None
    bytes: Annotated[int | None, Rule("sizes of those versions together", ge=1, lt=2**53)] = None
    requests: Annotated[float | None, Rule("a second, of each replica", gt=0, lt=2**53)] = None
    tokens: Annotated[float | None, Rule("computed in a second, of each replica", gt=0, lt=2**53)] = None


UNLIMITED = KeyQuotas()


class Key(Declared, frozen=True, kw_only=True):
    """The permissions of a key."""

    _config = STRICT

    name: Annotated[str, Rule("keys of one name are one principal", pattern=NAME)]
    scopes: Annotated[
        list[Annotated[str, Rule(one_of=("classify", "upload", "promote", "feedback", "review", "admin"))]],
        Rule(min_length=1, max_length=6),
    ]
    tasks: Annotated[
        list[Annotated[str, Rule(pattern=GLOB)]], Rule("globs, as `acme-*`", min_length=1, max_length=MAX_GLOBS)
    ]
    default_task: Annotated[Ref | None, Rule("what a request means that names no task")] = None
    quotas: KeyQuotas = UNLIMITED


class KeyFacts(Key, frozen=True, kw_only=True):
    """A key, without the key itself."""

    _document = "KeyResponse"
    _always = ("expires_at", "revoked_at")

    id: Annotated[str, Rule("what it is revoked by; the first digits of its SHA-256")]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    state: Annotated[str, Rule(one_of=("valid", "expired", "revoked"))]


class MadeKey(KeyFacts, frozen=True, kw_only=True):
    """A key that was made, and the one answer that has it."""

    key: str


class KeysResponse(Declared, frozen=True):
    """A page of the keys that were made, the oldest first."""

    _always = ("next",)

    keys: list[KeyFacts]
    next: Annotated[str | None, Rule("what `after` must be for the next page; null on the last one")] = None


class Change(Declared, frozen=True, kw_only=True):
    """One row of the audit trail; which fields there are depends on the action."""

    _document = "Changed"
    _always = ("task", "alias", "before", "version", "key", "reason")

    seq: int
    at: datetime
    action: str
    task: str | None = None
    alias: str | None = None
    before: Annotated[int | None, Rule("the version where the alias was before")] = None
    version: int | None = None
    target: Annotated[TargetFacts | None, Rule("the new meaning of an alias that is more than one version")] = None
    key: Annotated[str | None, Rule("name and id of a key that was made or revoked")] = None
    what: Annotated[str, Rule("in words: of an alias `1 → 2`, `shadow 5 ended`, `rolled back to 1`")]
    reason: Annotated[str | None, Rule("why the change was made")] = None
    past_gate: Annotated[bool, Rule("whether it was moved past its task's gate")]
    failed: Annotated[list[str] | None, Rule("the checks that failed, of a move past the gate")] = None
    principal: Annotated[str, Rule("who made the change")]
    request: Annotated[str, Rule("the id of the request by which it was made")]
    rolled_back: Annotated[bool, Rule("whether an alias went back to a version that was live before")]


class AuditResponse(Declared, frozen=True):
    """A page of the audit trail, the oldest change first."""

    _always = ("next",)

    changes: list[Change]
    next: Annotated[int | None, Rule("what `after` must be for the next page; null on the last one")] = None
