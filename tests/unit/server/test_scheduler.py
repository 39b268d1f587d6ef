"""Requests that end before their answer, by deadline or since the client left; and who stops a batch between layers."""

import numpy as np
import pytest

from bases import loaded
from onebert_encoder.maths.batch import BASE_ROW
from onebert_server.access.principal import root
from onebert_server.engine import scheduler as scheduler_module
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.block import REQUEST, SEQUENCE, Block
from onebert_server.engine.host import Host
from onebert_server.engine.queue.backlog import QueueLimits
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


def scheduler(limits: QueueLimits) -> tuple[Scheduler, int]:
    """One that has begun to serve, and a lane of it."""
    opened = Scheduler([HOST], limits, Metrics(), makes_way=lambda host, tokens: True)
    opened.open()
    return opened, opened.open_lane(lambda ended: None)


def block(tokens: int, deadline: float, principal: str = "someone", number: int = 0) -> Block:
    """A request for one text."""
    requests, sequences = np.zeros(1, REQUEST), np.zeros(1, SEQUENCE)
    requests["number"], requests["sequences"], requests["deadline"] = number, 1, deadline
    sequences["tokens"], sequences["generation"] = tokens, HOST.bank.generation[BASE_ROW]
    return Block([root(principal)], requests, sequences, np.full(tokens, 5, np.int32))


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
    opened, lane = scheduler(QueueLimits(10**6, 10**9, max_seconds=1.0))
    opened.queue.backlog.seconds_per_token = SECONDS_PER_TOKEN
    assert opened.put(lane, block(8, deadline=1.0, number=5)) == []
    clock.now = 1.0 - before_deadline
    opened.withdraw(lane, [5])
    assert opened.queue.sequences == 0
    assert opened.put(lane, block(700, deadline=60.0)) == []  # 0.7 s of work
    if left:
        with pytest.raises((QueueFull, OverShare)):
            opened.check("someone")
    else:
        opened.check("someone")


def test_only_who_may_run_between_its_layers_stops_a_batch(clock: type[Clock]) -> None:
    """Each stop takes Python's lock from the event loop, between two layers."""
    opened, lane = scheduler(QueueLimits(10**6, 10**9))

    def ask(principal: str, tokens: int) -> int:
        assert opened.put(lane, block(tokens, 60.0, principal)) == []
        return opened.asked.value

    def beside() -> list[int]:
        if taken := opened.take_beside(opened.beside, lambda _: (200, 200)):
            opened.go_on(opened.beside)
        return taken.inputs.lengths.tolist() if taken else []

    ask("flood", 400)
    taken = opened.take(lambda _: (400, 400), only_full=False)
    assert taken is not None
    assert taken.inputs.lengths.tolist() == [400]
    assert ask("flood", 400) == 0
    assert ask("light", 50) == 1
    assert beside() == [50]
    assert ask("light", 120) == 1, "it is ahead by 50 tokens of the room, which is 200"
    assert beside() == [120]
    assert (opened.asked.value, ask("light", 100), ask("flood", 5), ask("long", 300)) == (0, 0, 0, 0)
    assert beside() == []
    assert ask("other", 5) == 1


def test_a_text_that_many_sequences_share_counts_once_for_the_share_of_its_principal(clock: type[Clock]) -> None:
    opened, lane = scheduler(QueueLimits(10**6, 10**9))
    fan_out = block(300, 60.0, "a")
    sequences = np.repeat(fan_out.sequences, 10)
    sequences["tokens"], fan_out.requests["sequences"] = 30, 10
    assert opened.put(lane, fan_out._replace(sequences=sequences)) == []
    assert opened.put(lane, block(30, 60.0, "b")) == []
    taken = opened.take(lambda _: (1000, 1000), only_full=False)
    assert taken is not None
    assert len(taken.rows) == 11
    # The bare base shares every layer, and a sequence costs a token at least.
    assert opened.beside.tokens == 30 + 9 + 30
    assert opened.beside.served == {"a", "b"}


def test_what_requests_leave_behind_is_used_again_and_those_that_stay_keep_theirs(clock: type[Clock]) -> None:
    """A long one stays while thousands come and go: nothing grows with them, and its ids stay its own."""
    opened, lane = scheduler(QueueLimits(10**6, 10**9))
    staying = block(5, 60.0, number=1)
    staying.ids[:] = [6, 7, 8, 9, 10]
    assert opened.put(lane, staying) == []
    for number in range(2, 402):
        assert opened.put(lane, block(500, 60.0, number=number)) == []
        opened.withdraw(lane, [number])
    requests = opened._requests
    assert len(requests.all) == 1
    waiting = opened.queue._waiting
    assert max(len(requests.table), len(waiting._ids), len(waiting.rows)) <= 2**13
    taken = opened.take(lambda _: (10**6, 10**6), only_full=False)
    assert taken is not None
    assert taken.inputs.ids.tolist() == [6, 7, 8, 9, 10]
