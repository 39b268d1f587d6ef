"""The table of requests: whoever leaves, and however batches cut requests, each gets its own logits alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onebert_server.access.principal import root
from onebert_server.engine.block import REQUEST, Block, Ended
from onebert_server.engine.queue.waiting import WAITING
from onebert_server.engine.requests import Requests

# The number of sequences of each request of a block; it comes on one of two lanes.
blocks = st.tuples(st.integers(0, 1), st.lists(st.integers(1, 3), min_size=1, max_size=4))


def block(first: int, counts: list[int]) -> Block:
    requests = np.zeros(len(counts), REQUEST)
    requests["number"], requests["sequences"] = np.arange(first, first + len(counts)), counts
    return Block([root("a")], requests, np.empty(0), np.empty(0, np.int32))


def logits(number: int, position: int) -> list[float]:
    """As many as the position says, which nobody else has."""
    return [number * 100.0 + position] * (1 + position)


class Edge:
    """Keeps the logits of each request that is answered, as an edge reads them: one request after the other."""

    def __init__(self) -> None:
        self.answered: dict[int, list[list[float]]] = {}

    def note(self, ended: Ended) -> None:
        parts = np.split(ended.logits, np.cumsum(ended.outputs)[:-1]) if len(ended.outputs) else []
        assert ended.requests["sequences"].sum() == len(parts)
        for number, _, sequences, *_ in ended.requests.tolist():
            self.answered[number], parts = [part.tolist() for part in parts[:sequences]], parts[sequences:]


@given(st.lists(blocks, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_each_request_gets_its_own_logits_whoever_leaves_while_a_batch_runs(came, random):
    requests, edges = Requests(), [Edge(), Edge()]
    lanes = [requests.open_lane(edge.note) for edge in edges]
    waiting, lane_of, counts, left = [], {}, {}, set()
    for lane, own in came:
        first = len(counts)
        places = requests.add(lanes[lane], block(first, own), ["a"]).tolist()
        for number, place, count in zip(range(first, first + len(own)), places, own, strict=True):
            counts[number], lane_of[number] = count, lane
            waiting += [(number, place, position) for position in range(count)]
    random.shuffle(waiting)
    while waiting:
        batch, waiting = waiting[:3], waiting[3:]
        if (number := random.choice([None, *(counts.keys() - left)])) is not None:
            left.add(number)
            requests.leave(lanes[lane_of[number]], [number])
        rows = np.zeros(len(batch), WAITING)
        rows["request"], rows["position"] = [place for _, place, _ in batch], [position for *_, position in batch]
        values = [logits(number, position) for number, _, position in batch]
        ended = requests.settle(rows, np.concatenate(values).astype(np.float32), np.array([*map(len, values)]), 1.0)
        for answered, its in ended:
            answered(its)
    for lane, edge in enumerate(edges):
        expected = {
            number: [logits(number, position) for position in range(count)]
            for number, count in counts.items()
            if lane_of[number] == lane
        }
        assert edge.answered.keys() >= expected.keys() - left
        assert {number: expected[number] for number in edge.answered} == edge.answered
