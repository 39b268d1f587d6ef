"""The status of tasks as a store knows it; a server adds traffic and alarms."""

from collections.abc import Container, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from onebert_server.contract import moves
from onebert_server.contract.status import AliasInForce, KeptShare, Move, Score, TaskInForce, TaskStatus
from onebert_server.http.schemas.administration import change_of
from onebert_server.http.schemas.tasks import rollout_of
from onebert_store.file.decision import Decision
from onebert_store.file.manifest import SHADOWED, TaskType
from onebert_store.file.measured import Measured
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.names import LIVE
from onebert_store.registry.records import Alias, Change

# Moves that are shown of a task.
MOVES = 10


class LiveVersion(NamedTuple):
    """The version of `live` with the largest share, as far as its manifest is read; `base` is a name, or a digest."""

    task_type: TaskType | None
    base: str | None
    created_at: datetime
    score: Measured | None
    decision: Decision | None


class Stored(NamedTuple):
    """A task as a registry has it."""

    name: str
    versions: Sequence[int]
    aliases: Mapping[str, Alias]
    live: LiveVersion | None
    keeping: Keeping | None


def status_of(stored: Stored, last: Change | None, unavailable: Mapping[str, str] | None = None) -> TaskStatus:
    """Makes the status of a task by its registry; `last` is the last visible change of its aliases."""
    at, live, keeping = stored.aliases.get(LIVE), stored.live, stored.keeping
    score = live and live.score
    return TaskStatus(
        name=stored.name,
        base=live and live.base,
        live=_alias_of(LIVE, at, stored.versions) if at else None,
        created_at=live and live.created_at,
        score=Score(metric=score.metric, value=score.value, where=score.where) if score else None,
        unavailable=dict(unavailable or {}),
        kept=KeptShare(share=keeping.share, days=keeping.days) if keeping else None,
        last_move=move_of(last) if last else None,
    )


def extended(status: TaskStatus, columns: Sequence[Mapping[str, Mapping[str, Any]]]) -> TaskStatus:
    """Adds what extensions know of the task, by its name."""
    added = {name: value for each in columns for name, value in each.get(status.name, {}).items()}
    return replace(status, **added)


def in_force(status: TaskStatus, stored: Stored, last: Sequence[Change]) -> TaskInForce:
    """All that is known of one task; `last` are the last changes of its aliases, the latest first."""
    decision = stored.live and stored.live.decision
    return TaskInForce(
        **asdict(status),
        aliases=[_alias_of(name, at, stored.versions) for name, at in stored.aliases.items()],
        decision=None if decision is None else decision.model_dump(mode="json", exclude_none=True),
        moves=list(map(move_of, last)),
        next=_next(status, stored, bool(last and last[0].rolled_back)),
    )


def _alias_of(name: str, at: Alias, versions: Container[int]) -> AliasInForce:
    """An alias as clients read it."""
    target, back = rollout_of(at.target), at.back(versions)
    previous_target = back and rollout_of(back)
    return AliasInForce(
        alias=name,
        version=at.version,
        words=moves.meaning(target, at.version),
        target=target,
        previous=back and back.version,
        previous_target=previous_target,
        previous_words=back and moves.meaning(previous_target, back.version),
        ungated=sorted(number for number in at.ungated if number in versions),
        ends=moves.ends(target, None),
    )


def move_of(record: Change) -> Move:
    """A change of an alias as clients read it."""
    change = change_of(record)
    return Move(at=change.at, who=change.principal, alias=change.alias or "", what=change.what, reason=change.reason)


def _next(status: TaskStatus, stored: Stored, went_back: bool) -> str | None:
    """A command for what stands out most: nothing live, an alarm, a candidate, a newer version that was not left."""
    at, newest = stored.aliases.get(LIVE), max(stored.versions, default=0)
    if at is None:
        return f"onebert promote {stored.name} {newest}"
    if status.alarm is not None and status.kept:
        return f"onebert review {stored.name}"
    if status.alarm is not None and at.back(stored.versions):
        return f"onebert promote {stored.name} --rollback"
    if at.target.candidates:
        return f"onebert promote {stored.name} {at.target.candidates[-1]}"
    if newest > at.version and not went_back:
        shadowed = stored.live and stored.live.task_type in SHADOWED
        return (
            f"onebert rollout {stored.name} --shadow {newest}"
            if shadowed
            else f"onebert promote {stored.name} {newest}"
        )
    return None
