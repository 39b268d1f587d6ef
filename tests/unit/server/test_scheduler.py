"""Requests that end before their answer, by deadline or since the client left; and who stops a batch between layers."""

import pytest

from bases import loaded
from onebert_encoder.maths.batch import BASE_ROW
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context
from onebert_server.access.principal import root
from onebert_server.engine import scheduler as scheduler_module
from onebert_server.engine.bank import Bank
from onebert_server.engine.beside import Beside
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


def request(scheduler: Scheduler, tokens: int, deadline: float, principal: str = "someone") -> Request:
    context = Context(root(principal), deadline, 0.0, "request")
    return Request(HOST, [Item(Tokens([5] * tokens, [0] * tokens), 1)], context, scheduler.withdraw)


# A timer of uvloop fires up to a millisecond early. The engine's process counts the deadline of a front end's request
# from when its message comes, which is later by the time on the way.
@pytest.mark.promise("early-leavers")
@pytest.mark.parametrize(
    ("before_deadline", "left"),
    [(-0.001, False), (0.0009, False), (0.03, False), (0.2, True)],
    ids=["after it", "timer of uvloop", "message under way", "client left"],
)
def test_a_request_given_up_at_its_deadline_takes_no_room_from_its_principal(
    clock: type[Clock], before_deadline: float, left: bool
) -> None:
    scheduler = Scheduler(QueueLimits(10**6, 10**9, max_seconds=1.0), Metrics(), makes_way=True)
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


def test_only_who_may_run_between_its_layers_stops_a_batch(clock: type[Clock]) -> None:
    """Each stop takes Python's lock from the event loop, between two layers."""
    scheduler = Scheduler(QueueLimits(10**6, 10**9), Metrics(), makes_way=True)
    scheduler.open()

    def ask(principal: str, tokens: int) -> int:
        scheduler.put([request(scheduler, tokens, 60.0, principal)], wake=True)
        return scheduler.asked.value

    def beside() -> list[int]:
        if taken := scheduler.take_beside(lambda _: (200, 200)):
            scheduler.go_on(scheduler.beside)
        return [len(one.item.tokens) for one in taken]

    ask("flood", 400)
    assert [len(one.item.tokens) for one in scheduler.take(lambda _: (400, 400), only_full=False)] == [400]
    assert ask("flood", 400) == 0
    assert ask("light", 50) == 1
    assert beside() == [50]
    assert ask("light", 120) == 1, "it is ahead by 50 tokens of the room, which is 200"
    assert beside() == [120]
    assert (scheduler.asked.value, ask("light", 100), ask("flood", 5), ask("long", 300)) == (0, 0, 0, 0)
    assert beside() == []
    assert ask("other", 5) == 1


def test_a_text_that_many_sequences_share_counts_once_for_the_share_of_its_principal() -> None:
    scheduler = Scheduler(QueueLimits(10**6, 10**9), Metrics(), makes_way=True)
    shared, alone = Tokens([5] * 30, [0] * 30), Tokens([6] * 30, [0] * 30)
    fan_out = Request(HOST, [Item(shared, BASE_ROW)] * 10, Context(root("a"), 60.0, 0.0, "a"), scheduler.withdraw)
    single = Request(HOST, [Item(alone, BASE_ROW)], Context(root("b"), 60.0, 0.0, "b"), scheduler.withdraw)
    beside = Beside([*((fan_out, position) for position in range(10)), (single, 0)])
    assert beside.tokens == sum(fan_out.costs) + 30 < sum(fan_out.lengths)
    assert beside.served == {"a", "b"}
