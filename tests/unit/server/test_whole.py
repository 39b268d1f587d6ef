"""Texts that façades read to their end, in parts and in windows: by one version, into one answer of bounded size."""

import json

import msgspec
import pytest

from onebert_encoder.answering.asked import Asked, AskedWindow
from onebert_server.answering import sizes
from onebert_server.facades.clients import fms
from onebert_server.facades.facade import read_whole
from onebert_server.limits import MAX_ITEMS
from onebert_store.errors import TooLarge
from parts import assert_like

SHORT = "it is late"
LONG = "late order now and then it is late " * 9


@pytest.fixture
def parts(parts):
    """With more tasks."""
    parts.add("whole", max_length=48)  # long enough for windows that overlap
    return parts


def read(parts, refs, texts, show):
    return parts.call(lambda call: read_whole(call, refs, texts, show))


def test_a_reference_means_one_version_in_all_parts_and_windows(parts):
    """The alias moves while the first part is read."""
    texts = [SHORT] * MAX_ITEMS + [LONG, SHORT]
    texts[1] = LONG
    moved = []

    def show(index, answered):
        if not moved:
            moved.append(parts.add("whole", version=2, bias=7.0, seed=2, max_length=48))
        return index, answered

    shown = read(parts, ["whole"] * len(texts), texts, show)
    assert [index for index, _ in shown] == list(range(len(texts)))
    assert {answer.facts.ref for _, answer in shown} == {"whole@1"}
    window = AskedWindow(overlap=12)  # a quarter of the task's length
    [whole] = parts.answer(["whole@1"], [LONG], asked=Asked(window=window))
    expected = whole.reading.answer, whole.reading.tokens, False
    for index, answer in shown:
        assert_like(answer, expected if texts[index] == LONG else parts.alone("whole", SHORT))
    # The next request asks what the alias means by then.
    assert {answer.facts.ref for _, answer in read(parts, ["whole"] * 2, texts[:2], show)} == {"whole@2"}
    assert parts.unpinned()


@pytest.mark.parametrize("max_length", [8, 16, 48])
def test_texts_are_read_to_their_end_and_computed_once(parts, max_length):
    parts.add("read", max_length=max_length)
    window = AskedWindow(overlap=max_length // 4)
    [whole] = parts.answer(["read"], [LONG], asked=Asked(window=window))
    short, long = read(parts, ["read"] * 2, ["late", LONG], lambda _, answered: answered)
    assert (short.reading.windows, long.reading.windows) == (None, whole.reading.windows)
    assert_like(short, parts.alone("read", "late"))
    assert_like(long, (whole.reading.answer, whole.reading.tokens, False))
    parts.engine.close(60)  # then all batches have been counted
    assert sum(parts.batches.sequences) == 2 * whole.reading.windows + 1


def test_a_large_answer_ends_before_the_rest_is_computed(parts, monkeypatch):
    monkeypatch.setattr(sizes, "MAX_ANSWER_BYTES", 60_000)
    alone, body = (
        msgspec.convert({"contents": [SHORT] * count, "detector_params": {"threshold": -1.0}}, fms.Contents)
        for count in (1, 1024)
    )
    answer = parts.call(fms.contents, alone, "whole")
    assert [detection["text"] for detection in json.loads(answer.content)[0]] == [SHORT] * 2
    with pytest.raises(TooLarge, match="over 60000 bytes"):
        parts.call(fms.contents, body, "whole")
    assert sum(parts.batches.sequences) < len(body.contents) / 2
