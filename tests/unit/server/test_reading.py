"""Many questions read together beside each one read alone by the encoder: the same answers, bit for bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bases import loaded
from lengths import examples
from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.results import fields_of
from onebert_encoder.answering.windows import WindowLogits, answer_windows
from onebert_encoder.text.windows import window_cuts
from onebert_server.answering.plan import Question
from onebert_server.answering.reading import Reading, read_together
from onebert_server.answering.tokenizing import Splitter
from onebert_server.versions.facts import Facts
from onebert_store.errors import AnswerNotFinite
from onebert_store.file.decision import Abstain, Decision

TOKENIZER = loaded().tokenizer
SPLITTERS = {"base": Splitter(TOKENIZER, 64)}
DECISIONS = [
    None,
    Decision(temperature=1.7),
    Decision(thresholds={"label 0": 0.3, "label 1": 0.2}),
    Decision(abstain=Abstain(below=0.6)),
    Decision(abstain=Abstain(energy=-0.5), temperature=0.7),
]
WHOLE = ("single_label", "multi_label", "regression")


def facts_of(task, task_type, labels, decision=None):
    named = [f"label {number}" for number in range(labels)]
    if task_type == "span":
        named = ["start", "end"]
    pooling = "none" if task_type in ("token", "span") else "cls"
    return Facts(task, 1, "digest", "base", task_type, named, 12, pooling, decision)


def questions_of(seed, count):
    """Questions of a few tasks and options, in any order, and the logits of their sequences."""
    rng = np.random.default_rng(seed)
    tasks = [
        facts_of(f"t{number}", str(rng.choice(WHOLE)), int(rng.choice([1, 2, 3, 40])), DECISIONS[rng.integers(5)])
        for number in range(4)
    ]
    tasks += [facts_of("tags", "token", 3), facts_of("spans", "span", 2)]
    options = [PLAIN, PLAIN, Asked(top_k=1), Asked(threshold=0.4), Asked(activation="none"), Asked(energy=True)]
    questions, logits = [], []
    for _ in range(count):
        facts, asked = tasks[rng.integers(len(tasks))], options[rng.integers(len(options))]
        pair = facts.task_type == "span"
        words = " ".join(rng.choice(["good", "late", "order", "zq"], rng.integers(1, 30)))
        text = ("is it", words) if pair else words
        [pieces] = TOKENIZER.split([text], 64)
        windows = bool(rng.integers(2)) and not pair
        cuts = window_cuts(TOKENIZER, pieces, 12, 2) if windows else [TOKENIZER.fit(pieces, 12)]
        sizes = [TOKENIZER.measure(pieces, cut)[0] for cut in cuts] if facts.per_token else [None] * len(cuts)
        measured = TOKENIZER.measure(pieces, cuts[0])
        questions.append(Question(text, facts, asked, *measured, cuts, windows, pieces))
        shapes = [(len(facts.labels),) if size is None else (size, len(facts.labels)) for size in sizes]
        logits.append([rng.normal(0, 3, shape).astype(np.float32) for shape in shapes])
    return questions, logits


def alone(question, logits):
    """As the encoder answers one input, without a server."""
    facts = question.facts
    alignments = [
        TOKENIZER.cut(question.pieces, cut, align=True).alignment if facts.per_token else None for cut in question.cuts
    ]
    if not question.windows:
        return answer(logits[0], facts, question.text, alignments[0], question.asked)
    windows = [
        WindowLogits(*part) for part in zip(logits, (cut[-1][0] for cut in question.cuts), alignments, strict=True)
    ]
    return answer_windows(windows, facts, question.text, "max", question.asked)


def together(questions, logits):
    parts = [part for each in logits for part in each]
    sizes = np.array([part.size for part in parts], np.int32)
    return read_together(questions, np.concatenate([part.ravel() for part in parts]), sizes, SPLITTERS)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 70))
def test_questions_read_together_are_answered_like_each_alone(seed, count):
    questions, logits = questions_of(seed, count)
    for question, logit, reading in zip(questions, logits, together(questions, logits), strict=True):
        assert isinstance(reading, Reading)
        assert fields_of(reading.answer, None) == fields_of(alone(question, logit), None)
        assert (reading.tokens, reading.truncated) == (question.tokens, question.truncated)
        assert reading.windows == (len(question.cuts) if question.windows else None)


@given(st.integers(0, 10**6))
def test_an_answer_that_is_no_number_touches_no_other(seed):
    questions, logits = questions_of(seed, 20)
    rng = np.random.default_rng(seed)
    bad = set(rng.choice(20, 3).tolist())
    for number in bad:
        logits[number][-1].flat[rng.integers(logits[number][-1].size)] = rng.choice([np.nan, np.inf, -np.inf])
    for number, reading in enumerate(together(questions, logits)):
        if number in bad:
            assert isinstance(reading, AnswerNotFinite)
            assert questions[number].facts.ref in reading.detail
        else:
            assert fields_of(reading.answer, None) == fields_of(alone(questions[number], logits[number]), None)
