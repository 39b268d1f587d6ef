"""The table of counted versions against a plain list of their keys and states."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from onebert_server.observed import Seen
from onebert_server.telemetry import answer_counts
from onebert_server.telemetry.answer_counts import AnswerCounts, RequestAnswers, Slot

MAX_VERSIONS, MOST = 4, 6
tasks = st.sampled_from("abc")
keys = st.tuples(tasks, st.integers(1, 2))
steps = st.lists(
    st.tuples(st.just("count"), st.lists(st.lists(keys, max_size=5), max_size=3))
    | st.tuples(st.just("put"), keys, st.integers(0, 8))
    | st.tuples(st.just("drop"), keys),
    min_size=20,
    max_size=60,
)


class Twin:
    """Rows of (key, answers, sized), those that answered longest ago first; `sized` is None or a name and a size."""

    def __init__(self):
        self.rows = []

    def find(self, key):
        return next((row for row in self.rows if row[0] == key), None)

    def hold(self, key):
        if self.find(key) is None:
            self.rows.append([key, 0, None])
        self.make_room()
        return self.find(key)

    def make_room(self):
        while len(self.rows) > MAX_VERSIONS:
            self.rows.pop(0)

    def count(self, requests):
        """Requests of one turn: none of their versions makes room for another one of them."""
        keys = [key for request in requests for key in request]
        for key in keys:
            self.to_the_end(self.find(key) or [key, 0, None])
        self.make_room()
        for key in keys:
            row = self.hold(key)
            self.to_the_end(row)
            row[1] += 1

    def to_the_end(self, row):
        self.rows = [other for other in self.rows if other is not row] + [row]

    def put(self, key, size, name):
        row = self.hold(key)
        self.rows.remove(row)
        self.rows.append([key, row[1], (name, size)])
        while len(sized := [row for row in self.rows if row[2]]) > 1 and sum(row[2][1] for row in sized) > MOST:
            self.drop(next(row[0] for row in sized if row[0] != key))

    def drop(self, key):
        if row := self.find(key):
            row[2] = None


@given(steps)
def test_any_order_of_answers_and_states_is_that_of_a_plain_list(steps):
    twin, counts = Twin(), AnswerCounts()
    answers = Slot(counts)
    sized = Slot(counts, MOST)

    def listen(requests):
        assert counts.lock.locked()
        for seen in (seen for request in requests for seen in request.answers):
            key = seen.task, seen.version
            answers.put(key, (answers.states.get(key) or 0) + 1)

    counts.listeners.append(listen)
    with patch.object(answer_counts, "MAX_VERSIONS", MAX_VERSIONS):
        for number, step in enumerate(steps):
            match step:
                case "count", requests:
                    seen = [[Seen(task, version=version) for task, version in versions] for versions in requests]
                    counts.count([RequestAnswers(answers, 0.1) for answers in seen])
                    twin.count(requests)
                case "put", key, size:
                    sized.put(key, f"state {number}", size)
                    twin.put(key, size, f"state {number}")
                case "drop", key:
                    sized.drop(key)
                    twin.drop(key)
            assert dict(answers.states.items()) == {key: count for key, count, _ in twin.rows if count}
            assert dict(sized.states.items()) == {key: state[0] for key, _, state in twin.rows if state}


def test_a_state_that_makes_room_costs_no_look_at_all_versions():
    hashed = []

    class Key(tuple):
        __slots__ = ()
        __hash__ = lambda self: hashed.append(self) or tuple.__hash__(self)  # noqa: E731

    counts = AnswerCounts()
    sized, keys = Slot(counts, MOST), [Key((str(number), 1)) for number in range(1000)]
    for key in keys:
        counts._hold([key])
    for key in keys[-MOST - 1 :]:
        hashed.clear()
        sized.put(key, "state")
    assert len(sized.states) == MOST
    assert len(hashed) < 20
