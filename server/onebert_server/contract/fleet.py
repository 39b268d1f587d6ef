"""All tasks of a server at one glance."""

from datetime import datetime
from typing import Annotated

from onebert_server.contract.declared import Declared, Rule


class LabelShift(Declared, frozen=True, kw_only=True):
    """The label whose share of the answers differs most from the reference."""

    label: str
    reference: Annotated[float, Rule("its share of the reference's rows")]
    live: Annotated[float, Rule("its share of the last full window")]


class FleetTask(Declared, frozen=True, kw_only=True):
    """A task with its live version; of a split the one with the largest share."""

    _always = ("base", "live", "created_at", "a_minute", "p95", "shift", "alarm_since", "cause", "gate", "feedback")

    name: str
    base: Annotated[str | None, Rule("name, or digest if this server has no such base; null: not read yet")] = None
    live: int | None = None
    created_at: Annotated[datetime | None, Rule("of the live version")] = None
    unavailable: Annotated[dict[str, str], Rule("versions of the task that cannot be loaded, and why")]
    a_minute: Annotated[float | None, Rule("requests a minute, by the last five or so; null: none since the start")] = (
        None
    )
    p95: Annotated[float | None, Rule("seconds within which 95 of 100 of these were answered")] = None
    shift: Annotated[LabelShift | None, Rule("null under 100 answers, or without a reference")] = None
    alarm_since: Annotated[datetime | None, Rule("of the first version of `live` with an alarm")] = None
    cause: Annotated[str | None, Rule("as in `/v1/tasks/{task}/watch`")] = None
    gate: Annotated[bool | None, Rule("whether it has one; null for a key that may not move its aliases")] = None
    feedback: Annotated[
        int | None, Rule("rows since the live version was made; null without one, or for a key that may not review")
    ] = None


class FleetResponse(Declared, frozen=True, kw_only=True):
    """A page of the tasks, by name, as this server has seen them since its start."""

    _always = ("next",)

    tasks: list[FleetTask]
    next: Annotated[str | None, Rule("what `after` must be for the next page; null on the last one")] = None
