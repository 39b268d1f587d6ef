"""The records of counted versions against a plain list of their keys, answers and parts."""

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from lengths import examples
from observing import answered
from onebert_server.observed import Seen
from onebert_server.telemetry import counts as module
from onebert_server.telemetry.counts import AnswerCounts

MAX_VERSIONS, MAX_BYTES = 4, 6
keys = st.tuples(st.sampled_from("abc"), st.integers(1, 2))
steps = st.lists(
    st.tuples(st.just("count"), st.lists(st.lists(keys, max_size=5), max_size=3))
    | st.tuples(st.just("put"), keys, st.integers(0, 8)),
    min_size=10,
    max_size=30,
)


class Twin:
    """Rows of [key, answers, part, its size], those that answered longest ago first."""

    def __init__(self):
        self.rows = []

    def find(self, key):
        """The row of a version, which is the last one then."""
        row = next((row for row in self.rows if row[0] == key), [key, 0, None, 0])
        self.rows = [other for other in self.rows if other is not row] + [row]
        return row

    def count(self, requests):
        """Requests of one turn: none of their versions makes room for another one of them."""
        of_turn = [key for request in requests for key in request]
        for key in dict.fromkeys(of_turn):
            self.find(key)[1] += of_turn.count(key)
        self.make_room()

    def put(self, key, part, size):
        self.find(key)[2:] = part, size
        self.make_room()

    def make_room(self):
        while len(self.rows) > MAX_VERSIONS or (len(self.rows) > 1 and sum(row[3] for row in self.rows) > MAX_BYTES):
            self.rows.pop(0)


@settings(max_examples=examples(60))
@given(steps)
def test_any_order_of_answers_and_parts_is_that_of_a_plain_list(steps):
    twin, counts = Twin(), AnswerCounts(clock=lambda: 0.0)

    def listen(key, version, answers):
        assert counts.lock.locked()
        told[key] = told.get(key, 0) + len(answers)
        assert {(seen.task, seen.version) for seen in answers} == {key}

    counts.listeners.append(listen)
    with patch.multiple(module, MAX_VERSIONS=MAX_VERSIONS, MAX_BYTES=MAX_BYTES):
        for number, step in enumerate(steps):
            told = {}
            match step:
                case "count", requests:
                    seen = [[Seen(task, version=version) for task, version in versions] for versions in requests]
                    counts.count([answered(answers) for answers in seen])
                    twin.count(requests)
                    of_turn = [key for request in requests for key in request]
                    assert told == {key: of_turn.count(key) for key in of_turn}
                case "put", key, size:
                    counts.put(key, f"part {number}", size)
                    twin.put(key, f"part {number}", size)
            assert counts.parts(str) == [(key, part) for key, _, part, _ in twin.rows if part]
            assert {key: version.recent[module.ANSWERS] for key, version in counts._versions.items()} == {
                key: answers for key, answers, *_ in twin.rows
            }
