"""The status of tasks as a store knows it; a server adds traffic and alarms."""

from collections.abc import Container, Iterator, Mapping, Sequence
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
from onebert_store.registry.target import Target

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


def status_of(
    stored: Stored,
    last: Change | None,
    unavailable: Mapping[str, str] = {},
    lacks: Mapping[str, list[str]] = {},
) -> TaskStatus:
    """Makes the status of a task by its registry; `last` is the last visible change of its aliases."""
    at, live, keeping = stored.aliases.get(LIVE), stored.live, stored.keeping
    score = live and live.score
    return TaskStatus(
        name=stored.name,
        base=live and live.base,
        live=_alias_of(LIVE, at, stored.versions) if at else None,
        created_at=live and live.created_at,
        score=Score(metric=score.metric, value=score.value, where=score.where) if score else None,
        unavailable=dict(unavailable),
        lacks=dict(lacks),
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
        next=_next(status, stored, last),
    )


def _alias_of(name: str, at: Alias, versions: Container[int]) -> AliasInForce:
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
    return Move(
        at=change.at,
        who=change.principal,
        alias=change.alias or "",
        what=change.what,
        reason=change.reason,
        past_gate=change.past_gate,
        failed=change.failed,
    )


def _next(status: TaskStatus, stored: Stored, last: Sequence[Change]) -> str | None:
    """A command for what stands out most; whether a version is better or worse is said by its verdict alone."""
    at, newest = stored.aliases.get(LIVE), max(stored.versions, default=0)
    if at is None:
        return f"onebert promote {stored.name} {newest}"
    if status.worse:
        return f"onebert rollout {stored.name} {_without(at.target, status.worse[0].version)}"
    better = [each for each in status.candidates or () if each.verdict == "promote"]
    if better:
        return f"onebert promote {stored.name} {max(better, key=lambda each: each.better).version}"
    if status.alarm is not None and status.kept:
        return f"onebert review {stored.name} --tool label-studio --out {stored.name}.json"
    # A shadow gathers evidence, and no caller gets its answers. A version that `live` has left is not tried again.
    tried = any(newest in _versions_of(change) for change in last if change.alias == LIVE)
    shadowed = stored.live and stored.live.task_type in SHADOWED
    if newest > at.version and not tried and shadowed and not at.target.candidates:
        return f"onebert rollout {stored.name} --shadow {newest}"
    return None


def _versions_of(move: Change) -> Iterator[int | None]:
    yield from (move.before, move.version)
    for target in (move.before_target, move.target):
        yield from target.numbers if target else ()


def _without(target: Target, version: int) -> str:
    """The options of `onebert rollout` that end a candidate; its share goes to the version with the largest one."""
    if version not in dict(target.shares):
        rest = [f"--shadow {shadow.version}={shadow.percent}" for shadow in target.shadows if shadow.version != version]
        return " ".join(rest) or "--shadow none"
    shares = dict(target.shares)
    shares[target.version] += shares.pop(version)
    split = ",".join(f"{number}={share}" for number, share in shares.items())
    return f"--split {split if len(shares) > 1 else 'none'}"
