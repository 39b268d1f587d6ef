"""One answer from those of a text's windows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onebert_encoder.answering.answer import answer, extract, predict
from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.results import Answer, Extraction, FoundSpan
from onebert_encoder.answering.scores import Array, Outputs, Reduce, score
from onebert_encoder.text.tokens import Alignment, Text
from onebert_store.errors import InvalidInput
from onebert_store.file.decision import REDUCTIONS, Reduction, Window

# Tokens that a window shares with the next where nobody says so: what a sentence at their border needs of what stands
# before it; of short windows no more than a quarter, so that they go on.
_OVERLAP, _MAX_SHARE = 16, 4


class WindowLogits(NamedTuple):
    """What was computed for one window.

    Attributes:
        logits: [labels], or [tokens, labels] for a per-token task; float32.
        start: the first piece of the text, of a pair of its second, that the window has.
        alignment: where its tokens lie in the whole text; None unless the task is per token.
    """

    logits: Array
    start: int
    alignment: Alignment | None


REDUCE: Mapping[Reduction, Reduce] = {
    "max": lambda numbers: np.asarray(numbers.max(axis=-2)),
    "mean": lambda numbers: np.asarray(numbers.mean(axis=-2)),
}


def window_of(outputs: Outputs, max_length: int, asked: Asked = PLAIN) -> Window | None:
    """How a task reads long texts; None where it cuts them.

    Args:
        outputs: of the task.
        max_length: of the task.
        asked: what the request wants; it goes before what the task says.

    Raises:
        InvalidInput: the windows that are asked for are longer than the task takes.
    """
    if asked.window is None:
        return outputs.decision.window if outputs.decision is not None else None
    tokens = asked.window.tokens or max_length
    if tokens > max_length:
        raise InvalidInput(f"a window of {tokens} tokens is over the task's max_length of {max_length}")
    overlap, reduction = asked.window.overlap, asked.window.reduction or REDUCTIONS[outputs.task_type][0]
    return Window.model_construct(tokens=tokens, overlap=overlap, reduction=reduction)


def whole_window(outputs: Outputs, max_length: int) -> Window:
    """How a text is read to its end by a task that says nothing of long ones."""
    overlap, reduction = min(_OVERLAP, max_length // _MAX_SHARE), REDUCTIONS[outputs.task_type][0]
    return Window.model_construct(tokens=max_length, overlap=overlap, reduction=reduction)


def answer_windows(
    windows: Sequence[WindowLogits], outputs: Outputs, text: Text, reduction: Reduction, asked: Asked = PLAIN
) -> Answer:
    """One answer about the whole text.

    Scores of whole texts are the highest or the mean of those of the windows, label by label. A token of several
    windows is answered by the one that shows most of what is around it, so that a word is answered once. Spans are the
    best of all windows, each by its probability in its own.

    Args:
        windows: in the order of the text.
        outputs: of the task.
        text: the whole text or pair.
        reduction: one of the task type's.
        asked: what the request wants.
    """
    if outputs.task_type == "span":
        return _best_spans(windows, outputs, text, asked)
    if outputs.task_type == "token":
        return answer(*_joined(windows, outputs, text), asked)
    logits = np.stack([one.logits for one in windows]).astype(np.float64)
    return predict(score(logits, outputs, asked, REDUCE[reduction]), outputs)


def _best_spans(windows: Sequence[WindowLogits], outputs: Outputs, text: Text, asked: Asked) -> Extraction:
    best: dict[tuple[int, int], FoundSpan] = {}
    for window in windows:
        found = answer(window.logits, outputs, text, window.alignment, asked)
        for one in found.answers if isinstance(found, Extraction) else ():
            before = best.get((one.start, one.end))
            if before is None or one.score > before.score:
                best[one.start, one.end] = one
    return extract(sorted(best.values(), key=lambda one: -one.score), outputs, asked)


def _joined(windows: Sequence[WindowLogits], outputs: Outputs, text: Text) -> tuple[Array, Outputs, Text, Alignment]:
    """The pieces of the whole text as if they were one sequence, each with the logits of its best window."""
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
    """The tokens of a window that are pieces of the text."""
    if window.alignment is None:
        raise ValueError("a per-token task is answered with the alignment of its tokens")
    return [i for i, half in enumerate(window.alignment.sequences) if half == 0]


def _shown(start: int, end: int, count: int) -> Array:
    """Of each piece of a window, how many it sees on the side where it sees fewer; an end of the text hides nothing."""
    pieces = np.arange(start, end, dtype=np.float64)
    before = pieces - start if start else np.full(end - start, np.inf)
    after = end - 1 - pieces if end < count else np.full(end - start, np.inf)
    return np.asarray(np.minimum(before, after))
