"""What ends a request before its answer: its deadline, or a client who leaves, which says how long clients wait."""

import pytest

from bases import loaded
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context
from onebert_server.access.principal import root
from onebert_server.engine import scheduler as scheduler_module
from onebert_server.engine.bank import Bank
from onebert_server.engine.host import Host
from onebert_server.engine.passes import Item
from onebert_server.engine.queue import QueueLimits
from onebert_server.engine.request import Request
from onebert_server.engine.scheduler import Scheduler
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import OverShare, QueueFull

SECONDS_PER_TOKEN = 0.001
HOST = Host(loaded(), Bank(loaded()))


class Clock:
    """What the scheduler takes for the time."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(scheduler_module.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(Clock, "now", 0.0)
    return Clock


def request(scheduler: Scheduler, tokens: int, deadline: float) -> Request:
    context = Context(root("someone"), deadline, 0.0, "request")
    return Request(HOST, [Item(Tokens([5] * tokens, [0] * tokens), 1)], context, scheduler.withdraw)


# A timer of uvloop fires up to a millisecond early. The engine's process counts the deadline of a front end's request
# from when its message comes, which is later by the time on the way.
@pytest.mark.parametrize(
    ("before_deadline", "left"),
    [(-0.001, False), (0.0009, False), (0.03, False), (0.2, True)],
    ids=["after it", "timer of uvloop", "message under way", "client left"],
)
def test_a_request_given_up_at_its_deadline_takes_no_room_from_its_principal(
    clock: type[Clock], before_deadline: float, left: bool
) -> None:
    scheduler = Scheduler(QueueLimits(10**6, 10**9, max_seconds=1.0), Metrics())
    scheduler.queue.seconds_per_token = SECONDS_PER_TOKEN
    scheduler.open()
    given_up = request(scheduler, 8, deadline=1.0)
    scheduler.put([given_up], wake=True)
    clock.now = 1.0 - before_deadline
    assert given_up.cancel()
    scheduler.put([request(scheduler, 700, deadline=60.0)], wake=True)  # 0.7 s of work
    if left:
        with pytest.raises((QueueFull, OverShare)):
            scheduler.check("someone")
    else:
        scheduler.check("someone")
