"""Finds the words, entities and spans of an answer in the text."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Protocol

import numpy as np

from onebert_encoder.answering.results import FoundSpan, Labeled
from onebert_encoder.answering.scores import Array, log_softmax
from onebert_encoder.text.tokens import Alignment

MAX_ANSWER_TOKENS = 30
"""Longest answer of a span task, the usual limit for SQuAD."""
MAX_ANSWERS = 20
"""Most answers of a span task: a context has thousands of spans, and a request may address a thousand tasks."""


class _Task(Protocol):
    @property
    def task_type(self) -> str: ...

    @property
    def labels(self) -> Sequence[str]: ...


def is_bio(labels: Sequence[str]) -> bool:
    """Whether labels mark entities: O, B-x and I-x; I-x alone where no two entities touch (IOB1)."""
    marks = [label[:2] for label in labels if label != "O"]
    return "O" in labels and len(marks) > 0 and all(mark in ("B-", "I-") for mark in marks)


def answer_labels(task: _Task) -> Collection[str]:
    """The labels that a task's answers have; if its labels are BIO tags, the entities have these without B- and I-."""
    if task.task_type == "token" and is_bio(task.labels):
        return {label[2:] for label in task.labels if label != "O"}
    return task.labels


def word_tokens(alignment: Alignment) -> list[list[int]]:
    """Token indices of every word; special tokens and whitespace belong to no word."""
    seen = [i for i, (start, end) in enumerate(alignment.offsets) if start < end]
    return [list(tokens) for _, tokens in groupby(seen, key=lambda i: (alignment.sequences[i], alignment.words[i]))]


def find_words(alignment: Alignment) -> tuple[list[int], list[tuple[int, int]]]:
    """Index of the first token, and the span, of every word."""
    words, offsets = word_tokens(alignment), alignment.offsets
    return [tokens[0] for tokens in words], [(offsets[tokens[0]][0], offsets[tokens[-1]][1]) for tokens in words]


def join_entities(words: Sequence[Labeled]) -> list[Labeled]:
    """Joins words like seqeval's default mode: an I-x that does not continue an entity of type x begins a new one."""
    stretches: list[list[Labeled]] = []
    before = "O"
    for word in words:
        if word.label != "O":
            if word.label[0] == "I" and before != "O" and before[2:] == word.label[2:]:
                stretches[-1].append(word)
            else:
                stretches.append([word])
        before = word.label
    return [
        Labeled(words[0].start, words[-1].end, words[0].label[2:], sum(word.score for word in words) / len(words))
        for words in stretches
    ]


def find_spans(logits: Array, alignment: Alignment, context: str, wanted: int) -> list[FoundSpan]:
    """At most `wanted` spans of the context (the second half), best first; `logits` [tokens, 2]: start, end."""
    inside = np.array([i for i, half in enumerate(alignment.sequences) if half == 1], dtype=np.int64)
    if not len(inside):
        return []
    start, end = log_softmax(logits[inside].T)
    # scores[i, n] is the log-probability of the span from token i to token i + n.
    longest = min(MAX_ANSWER_TOKENS, len(inside))
    ends = np.lib.stride_tricks.sliding_window_view(np.pad(end, (0, longest - 1), constant_values=-np.inf), longest)
    scores = start[:, None] + ends
    answers: dict[tuple[int, int], FoundSpan] = {}
    for index in np.argsort(-scores, axis=None, kind="stable").tolist():
        first, more = divmod(index, longest)
        if len(answers) == wanted or np.isneginf(scores[first, more]):
            break
        (a, a_end), (b_start, b) = alignment.offsets[inside[first]], alignment.offsets[inside[first + more]]
        # Tokens that are bytes of one character give the same span: keep the first, which scores best. Whitespace
        # tokens have empty offsets; they neither begin nor end an answer.
        if a < a_end and b_start < b and (a, b) not in answers:
            answers[a, b] = FoundSpan(a, b, context[a:b], float(np.exp(scores[first, more])))
    return list(answers.values())
