"""The limit on a body's time: it counts from the first read, so that whoever waits for a turn loses nothing of it."""

import asyncio
import math

import pytest
from starlette.exceptions import HTTPException

from loops import Clock
from onebert_server.http.body import Bodies, Body
from onebert_server.http.head import HEAD, Head
from parts import context

TIMEOUT = 60


def _receive(before, after, until=math.inf):
    """Runs a request whose body is read `before` seconds after its begin, and comes `after` seconds later.

    Args:
        until: seconds that the request itself has.
    """
    got = []

    async def app():
        loop.moved += before
        got.append(await body.receive())

    async def receive():
        loop.moved += after
        for _ in range(2):
            await asyncio.sleep(0)  # a turn of the loop: the first sees that time is up, the second says so
        return {"type": "http.request", "body": b"body", "more_body": False}

    bodies = Bodies(100, TIMEOUT)
    body = Body({"method": "POST", "state": {HEAD: Head()}}, receive, context(seconds=until), bodies)
    with asyncio.Runner(loop_factory=Clock) as runner:
        loop = runner.get_loop()
        runner.run(app())
    return got


def test_waiting_for_a_turn_does_not_count():
    assert _receive(before=10 * TIMEOUT, after=TIMEOUT / 2)[0]["body"] == b"body"


@pytest.mark.parametrize(("after", "until"), [(2 * TIMEOUT, math.inf), (TIMEOUT / 2, TIMEOUT / 4)])
def test_a_body_that_comes_after_its_requests_deadline_is_refused(after, until):
    """Or after the time that any body has."""
    with pytest.raises(HTTPException) as refused:
        _receive(before=0, after=after, until=until)
    assert refused.value.status_code == 408
