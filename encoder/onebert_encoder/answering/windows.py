"""Merges the answers of a text's windows into one."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onebert_encoder.answering.answer import aligned, answer, extract, predict
from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.results import Answer, Extraction, FoundSpan
from onebert_encoder.answering.scores import Array, Outputs, Reduce, score
from onebert_encoder.text.tokens import Alignment, Text
from onebert_store.errors import InvalidInput
from onebert_store.file.decision import REDUCTIONS, Reduction, Window

# Default overlap in tokens: the context that a sentence at a window's edge needs. At most a quarter of a window, so
# that short windows still advance.
_OVERLAP, _MAX_SHARE = 16, 4


class WindowLogits(NamedTuple):
    """Float32 logits of one window: [labels], or [tokens, labels]; `start` is its first piece in the (second) text."""

    logits: Array
    start: int
    alignment: Alignment | None


REDUCE: Mapping[Reduction, Reduce] = {
    "max": lambda numbers: np.asarray(numbers.max(axis=-2)),
    "mean": lambda numbers: np.asarray(numbers.mean(axis=-2)),
}


def window_of(outputs: Outputs, max_length: int, asked: Asked = PLAIN) -> Window | None:
    """The windows that a task reads long texts in, or None; InvalidInput if the request's are over `max_length`."""
    if asked.window is None:
        return outputs.decision.window if outputs.decision is not None else None
    tokens = asked.window.tokens or max_length
    if tokens > max_length:
        raise InvalidInput(f"a window of {tokens} tokens is over the task's max_length of {max_length}")
    overlap, reduction = asked.window.overlap, asked.window.reduction or REDUCTIONS[outputs.task_type][0]
    return Window.model_construct(tokens=tokens, overlap=overlap, reduction=reduction)


def whole_window(outputs: Outputs, max_length: int) -> Window:
    """Default windows, for a task whose manifest defines none."""
    overlap, reduction = min(_OVERLAP, max_length // _MAX_SHARE), REDUCTIONS[outputs.task_type][0]
    return Window.model_construct(tokens=max_length, overlap=overlap, reduction=reduction)


def answer_windows(
    windows: Sequence[WindowLogits], outputs: Outputs, text: Text, reduction: Reduction, asked: Asked = PLAIN
) -> Answer:
    """Merges the windows, given in text order, into one answer about the whole text.

    Tasks on whole texts take the maximum or mean of each label's scores. A token that lies in several windows takes the
    logits of the window with the most context around it, so each word is answered once. Span tasks take the best spans
    of all windows, each with its probability in its own window.
    """
    if outputs.task_type == "span":
        return _best_spans(windows, outputs, text, asked)
    if outputs.task_type == "token":
        return answer(*_joined(windows, outputs, text), asked)
    logits = np.stack([window.logits for window in windows]).astype(np.float64)
    [prediction] = predict(score(logits[None], outputs, asked, REDUCE[reduction]), outputs, [outputs.labels])
    return prediction


def _best_spans(windows: Sequence[WindowLogits], outputs: Outputs, text: Text, asked: Asked) -> Extraction:
    best: dict[tuple[int, int], FoundSpan] = {}
    for window in windows:
        extraction = answer(window.logits, outputs, text, window.alignment, asked)
        for span in extraction.answers if isinstance(extraction, Extraction) else ():
            before = best.get((span.start, span.end))
            if before is None or span.score > before.score:
                best[span.start, span.end] = span
    return extract(sorted(best.values(), key=lambda span: -span.score), outputs, asked)


def _joined(windows: Sequence[WindowLogits], outputs: Outputs, text: Text) -> tuple[Array, Outputs, Text, Alignment]:
    """The whole text's pieces as one sequence, each with the logits of its best window."""
    rows = [_rows(window) for window in windows]
    count = max(window.start + len(inside) for window, inside in zip(windows, rows, strict=True))
    logits = np.zeros((count, len(outputs.labels)), np.float32)
    around = np.full(count, -1.0)
    whole = Alignment([(0, 0)] * count, [None] * count, [0] * count)
    for window, inside in zip(windows, rows, strict=True):
        end = window.start + len(inside)
        shown = _shown(window.start, end, count)
        better = shown > around[window.start : end]
        logits[window.start : end][better] = window.logits[inside][better]
        around[window.start : end][better] = shown[better]
        if window.alignment is not None:
            whole.offsets[window.start : end] = [window.alignment.offsets[i] for i in inside]
            whole.words[window.start : end] = [window.alignment.words[i] for i in inside]
    return logits, outputs, text, whole


def _rows(window: WindowLogits) -> list[int]:
    return [i for i, half in enumerate(aligned(window.alignment).sequences) if half == 0]


def _shown(start: int, end: int, count: int) -> Array:
    """For each piece of a window, its context on the shorter side, in pieces; infinite at an end of the text."""
    pieces = np.arange(start, end, dtype=np.float64)
    before = pieces - start if start else np.full(end - start, np.inf)
    after = end - 1 - pieces if end < count else np.full(end - start, np.inf)
    return np.asarray(np.minimum(before, after))
