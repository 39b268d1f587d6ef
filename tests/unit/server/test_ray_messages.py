"""What front ends and replicas of a cluster send each other: one request each, with rows by reference and version."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onebert_ray import messages
from onebert_ray.calls import apart
from onebert_ray.messages import Asked, Rows, task_of
from onebert_server.access.principal import root
from onebert_server.engine.block import ENDED, REQUEST, SEQUENCE, Block, Ended
from onebert_server.remote import wire
from onebert_server.remote.wire import BlockMessage, EndedMessage
from onebert_store.errors import OverQuota, QueueFull


def versions(*rows):
    """A replica's reply: (version, lasting) of each reference, in rows that are its own."""
    return wire.Versions([wire.Found(identity(ref), 0, 7, 99, None, lasting, None) for ref, lasting in rows], [])


def identity(version):
    return version, f"digest of {version}"


@st.composite
def requests(draw):
    """Requests as lists of sequences: (row, ids)."""
    ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)
    return draw(st.lists(st.lists(st.tuples(st.integers(0, 3), ids), max_size=4), max_size=5))


def block_with(asked, generations):
    """A block of these requests, each of a principal of its own."""
    sequences = [entry for request in asked for entry in request]
    each, rows = np.zeros(len(asked), REQUEST), np.zeros(len(sequences), SEQUENCE)
    each["number"], each["principal"] = np.arange(len(asked)) + 10, np.arange(len(asked))
    each["sequences"] = [len(request) for request in asked]
    rows["tokens"] = [len(ids) for _, ids in sequences]
    rows["generation"] = [generations[row] for row, _ in sequences]
    ids = np.array([entry for _, ids in sequences for entry in ids], np.int32)
    return Block([root(f"caller {number}") for number in range(len(asked))], each, rows, ids)


@given(requests())
def test_a_request_takes_its_own_principal_texts_and_rows_along(asked):
    names = Rows()
    refs = ["tone", "tone@2", "mood", "tags@beta"]
    resolved = names.named(
        versions(("tone@3", True), ("tone@2", True), ("mood@1", False), ("tags@5", True)), refs
    ).found
    named = [("tone", "tone@3"), ("tone@2", "tone@2"), ("mood@1", "mood@1"), ("tags@beta", "tags@5")]
    expected_rows = [(ref, identity(version)) for ref, version in named]
    sent = block_with(asked, [row.generation for row in resolved])
    apart_from = [*names.asked(BlockMessage.of(sent), seq=12)]
    assert [int(request["number"][0]) for request, _ in apart_from] == [*range(10, 10 + len(asked))]
    for index, (_, sent_on) in enumerate(apart_from):
        message = wire.decoder(Asked)(wire.encode(sent_on))
        block = message.block.block(None)
        assert block.principals == [root(f"caller {index}")]
        assert (block.requests["principal"].tolist(), block.requests["sequences"].tolist()) == (
            [0],
            [len(asked[index])],
        )
        assert [message.rows[row] for row in block.sequences["generation"]] == [
            expected_rows[row] for row, _ in asked[index]
        ]
        assert block.sequences["tokens"].tolist() == [len(ids) for _, ids in asked[index]]
        assert block.ids.tolist() == [row for _, ids in asked[index] for row in ids]
        assert message.seq == 12


def test_a_row_that_was_forgotten_is_not_asked_for(monkeypatch):
    """As where a million references were resolved since; no other row has its number."""
    monkeypatch.setattr(messages, "MAX_ROWS", 2)
    names, numbers = Rows(), []
    for version in range(1, 4):
        [resolved] = names.named(versions((f"tone@{version}", True)), [f"tone@{version}"]).found
        numbers.append(resolved.generation)
    assert len({*numbers}) == 3
    sent = block_with([[(0, [1])], [(1, [1])], [(2, [1])]], numbers)
    rows = [message and message.rows for _, message in names.asked(BlockMessage.of(sent), seq=0)]
    assert rows == [None, None, [("tone@3", identity("tone@3"))]]


def test_requests_for_one_task_say_so_to_the_router():
    assert task_of(["tone", "tone@2", "tone@beta"]) == "tone"
    assert task_of(["tone", "mood"]) == task_of([]) == ""


answers = st.lists(st.lists(st.lists(st.floats(width=32, allow_nan=False), max_size=3), max_size=3) | st.integers(0, 1))


@given(answers)
def test_each_request_of_a_batch_gets_its_own_logits_or_its_error(given_answers):
    errors = [QueueFull("try again soon", 7), OverQuota("less", 2)]
    answered = [row for row in given_answers if isinstance(row, list)]
    requests = np.zeros(len(given_answers), ENDED)
    requests["number"] = np.arange(len(requests)) + 5
    requests["error"] = [row if isinstance(row, int) else -1 for row in given_answers]
    requests["sequences"] = [0 if isinstance(row, int) else len(row) for row in given_answers]
    outputs = np.array([len(logits) for row in answered for logits in row], np.int32)
    flat = np.array([value for row in answered for logits in row for value in logits], np.float32)
    parts = [*apart(EndedMessage.of(Ended(requests, outputs, flat, errors), None))]
    assert [number for number, _ in parts] == requests["number"].tolist()
    for (number, message), expected in zip(parts, given_answers, strict=True):
        ended = message.ended(None)
        assert ended.requests["number"].tolist() == [number]
        if isinstance(expected, int):
            assert ended.errors[ended.requests["error"][0]].code == errors[expected].code
            continue
        stops = np.cumsum(ended.outputs)
        assert [part.tolist() for part in np.split(ended.logits, stops)[:-1]] == [
            np.array(logits, np.float32).tolist() for logits in expected
        ]
