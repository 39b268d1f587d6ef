"""Finished requests are handed over once a turn of the event loop, and none of them is lost."""

import asyncio
import json

from onebert_server.observed import Ended
from onebert_server.settings import Settings
from onebert_server.telemetry.telemetry import open_telemetry


class Taken:
    """Takes counts and lines of the access log, in the order in which they come."""

    def __init__(self):
        self.came, self.open = [], 0

    def request_began(self):
        self.open += 1

    def requests_ended(self, ended):
        self.open -= len(ended)
        self.came.append([one.status for one in ended])

    def write(self, lines):
        self.came.append([json.loads(line)["id"] for line in lines])


def ended(status):
    return Ended("POST", "/v1/classify", status, 0.1, None)


def test_requests_of_one_turn_are_counted_together_behind_their_lines():
    taken = Taken()

    async def turns(telemetry):
        observed = [telemetry.begin("/v1/classify", []) for _ in range(4)]
        assert taken.open == 4
        for number in range(3):
            telemetry.end(ended(200 + number), f"request-{number}", None, observed[number])
        assert taken.came == []
        await asyncio.sleep(0)
        assert taken.came == [["request-0", "request-1", "request-2"], [200, 201, 202]]
        telemetry.end(ended(503), "request-3", "somebody", observed[3])

    with open_telemetry(Settings.model_construct(access_log="json"), taken) as telemetry:
        telemetry.counts = taken
        asyncio.run(turns(telemetry))
    assert taken.came[2:] == [["request-3"], [503]]
    assert taken.open == 0


def test_a_scrape_sees_what_was_answered_in_its_own_turn():
    taken = Taken()

    async def turn(telemetry):
        telemetry.end(ended(200), "request", None, telemetry.begin("/v1/classify", []))
        telemetry.flush()
        assert taken.came == [["request"], [200]]
        await asyncio.sleep(0)
        assert len(taken.came) == 2

    with open_telemetry(Settings.model_construct(access_log="json"), taken) as telemetry:
        telemetry.counts = taken
        asyncio.run(turn(telemetry))
