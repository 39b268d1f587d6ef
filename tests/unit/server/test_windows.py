"""What requests ask of answers, and long texts in windows: in the engine's process and from a front end the same."""

import numpy as np
import pytest
from scipy.special import softmax

from onebert_encoder.answering.asked import Asked, AskedWindow
from onebert_encoder.text.windows import window_cuts
from onebert_server.answering import sizes
from onebert_store.errors import InvalidInput, OneBertError

WINDOW = {"tokens": 12, "overlap": 4, "reduction": "max"}
LONG = " ".join(f"order late {word} now" for word in ("good", "zq", "ab") * 40)


@pytest.fixture
def parts(parts):
    """With more tasks."""
    window = {"format": 2, "decision": {"window": WINDOW}}
    parts.add("read", **window)
    union = {"format": 2, "decision": {"window": WINDOW | {"reduction": "union"}}}
    parts.add("readtags", task_type="token", pooling="none", labels=["O", "B-x", "I-x"], **union)
    parts.add("readspans", task_type="span", pooling="none", labels=["start", "end"], **window)
    return parts


def windows_alone(parts, name, text, window=WINDOW):
    """The logits of every window, each computed alone by the encoder."""
    tokenizer = parts.base.tokenizer
    (pieces,) = tokenizer.split([text], 10**6)
    cuts = window_cuts(tokenizer, pieces, window["tokens"], window["overlap"])
    _, row = parts.rows[name, 1]
    return [parts.logits(row, [tokenizer.cut(pieces, cut)])[0].astype(np.float64) for cut in cuts]


def test_the_second_text_of_a_pair_is_read_in_windows(parts):
    pair = ("what is late", LONG[:400])
    [answer] = parts.answer(["readspans"], [pair])
    span = answer.reading.answer.answers[0]
    assert span.text == LONG[:400][span.start : span.end]
    best = 0.0
    tokenizer = parts.base.tokenizer
    (pieces,) = tokenizer.split([pair], 10**6)
    cuts = window_cuts(tokenizer, pieces, 12, 4)
    for cut, logits in zip(cuts, windows_alone(parts, "readspans", pair), strict=True):
        alignment = tokenizer.cut(pieces, cut, align=True).alignment
        inside = [i for i, half in enumerate(alignment.sequences) if half == 1]
        starts, ends = softmax(logits[inside], axis=0).T
        best = max([best, *(starts[i] * ends[j] for i in range(len(inside)) for j in range(i, len(inside)))])
    assert span.score == pytest.approx(best, abs=1e-5)
    assert answer.reading.windows == len(cuts)
    with pytest.raises(OneBertError, match="no room beside the special tokens and the first text"):
        parts.answer(["readspans"], [("late " * 12, LONG)])


def test_what_a_task_does_not_have_is_refused_and_left_out_of_all(parts):
    parts.add("number", task_type="regression", labels=["value"])
    refused = [
        ("number", Asked(activation="none"), "a regression task and has no activation none"),
        ("tags", Asked(threshold=0.5), "a token task and has no thresholds"),
        ("tags", Asked(window=AskedWindow(reduction="max")), "has no reduction max"),
        ("short", Asked(window=AskedWindow(tokens=8)), "takes 6 tokens, and a window of it no more"),
    ]
    for name, asked, message in refused:
        with pytest.raises(OneBertError, match=message) as caught:
            parts.answer([name], ["it is late"], asked=asked)
        assert caught.value.code == InvalidInput.code
    for asked in (Asked(activation="sigmoid"), Asked(threshold=0.1)):
        answered = parts.answer(None, ["it is late"], asked=asked)
        assert not {answer.facts.task for answer in answered} & {"tags", "readtags"}
    assert [answer.facts.task for answer in parts.answer(None, ["late"], asked=Asked(activation="none"))].count(
        "number"
    ) == 0
    assert parts.unpinned()


def test_windows_count_as_the_sequences_that_they_are(parts, monkeypatch):
    count = len(windows_alone(parts, "read", LONG))
    monkeypatch.setattr(sizes, "MAX_SEQUENCES", 2 * count)
    assert len(parts.answer(["read"] * 2, [LONG] * 2)) == 2
    with pytest.raises(OneBertError, match="send the request in parts"):
        parts.answer(["read"] * 3, [LONG] * 3)
    assert parts.unpinned()
