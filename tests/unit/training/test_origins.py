"""A task's own rows are measured, added rows never: no linked text is on both sides of a split or fold."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onebert.cli import _source
from onebert.tables import source_of
from onebert_encoder.base.base import Base
from onebert_encoder.text.tokens import Text
from onebert_server.contract.review import FeedbackRow, RightSpan
from onebert_store.errors import InvalidData
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source
from onebert_training.data.dataset import Dataset, load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.data.splitting import SPLIT_SEED, make_folds
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings

Row = tuple[tuple[str, str], str]  # a pair and its label


def source(rows: Sequence[Row], name: str = "data") -> Source:
    columns = {
        "text": [pair[0] for pair, _ in rows],
        "text_pair": [pair[1] for pair, _ in rows],
        "label": [label for _, label in rows],
    }
    return Source(name, {"train": Table(columns, name)}, single_file=True)


def linked_pairs(pairs: Iterable[tuple[str, str]]) -> list[set[tuple[str, str]]]:
    """Components of pairs with common texts, by walking the graph."""
    having = defaultdict(set)
    for pair in pairs:
        for text in pair:
            having[text].add(pair)
    parts, seen = list[set[tuple[str, str]]](), set[tuple[str, str]]()
    for pair in pairs:
        waiting, part = {pair} - seen, set[tuple[str, str]]()
        while waiting:
            part.add(next_pair := waiting.pop())
            waiting |= {other for text in next_pair for other in having[text]} - part
        seen |= part
        parts += [part] if part else []
    return parts


def apart(trained: Sequence[Text], measured: Sequence[Text], data: Sequence[tuple[str, str]]) -> bool:
    """Whether no pair, or where pairs of the data are not too linked for that, no linked text, is on both sides."""
    largest = max(sum(pair in part for pair in data) for part in linked_pairs(data))
    if largest > max(2, len(data) // 10):
        return not {tuple(sorted(pair)) for pair in trained} & {tuple(sorted(pair)) for pair in measured}
    return not any(part & {*trained} and part & {*measured} for part in linked_pairs([*trained, *measured]))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    texts = draw(st.sampled_from([12, 60, 400]))
    text = st.integers(0, texts).map("text {}".format)
    row = st.tuples(st.tuples(text, text), st.sampled_from(["no", "yes"]))
    return draw(st.lists(row, min_size=20, max_size=60)), draw(st.lists(row, min_size=1, max_size=25))


@given(tables(), st.booleans())
def test_no_linked_text_is_on_both_sides_and_the_datas_rows_alone_are_measured(
    rows: tuple[list[Row], list[Row]], folds: bool
) -> None:
    data, added = rows
    try:
        plain, larger = (
            load_dataset(source(data), keep_few=folds, extra=extra) for extra in (None, source(added, "feedback"))
        )
    except InvalidData:
        assume(False)
    pairs, right = [pair for pair, _ in data], dict(added)
    labels = defaultdict(set)
    for pair, label in data:
        labels[pair].add(right.get(pair, label))
    train = larger.splits["train"]
    parts = [(train.texts, larger.splits.get("validation"))]
    if folds:
        sides = make_folds(train, "single_label", 5, SPLIT_SEED)
        parts = [([train.texts[row] for row in fold.rows], train.take(fold.held_out)) for fold in sides]
        measured = np.sort(np.concatenate([fold.held_out for fold in sides]))
        assert measured.tolist() == list(range(len(data))), "every row of the data once"
    for trained, held_out in parts:
        assert apart(trained, held_out.texts, pairs)
        for pair, label in zip(held_out.texts, held_out.gold, strict=True):
            assert larger.labels[label] in labels[pair]
    if not folds:
        assert larger.splits["validation"].texts == plain.splits["validation"].texts


def test_added_pairs_with_a_premise_of_validation_are_not_trained_on() -> None:
    rows = [((f"premise {row // 3}", f"claim {row}"), ("no", "yes")[row % 2]) for row in range(600)]
    premises = {premise for premise, _ in load_dataset(source(rows)).splits["validation"].texts}
    assert len(premises) == 20
    added = [((premise, f"another claim on {premise}"), "yes") for premise in sorted(premises)]
    dataset = load_dataset(source(rows), extra=source([*added, (("premise", "claim"), "no")], "feedback"))
    assert not premises & {premise for premise, _ in dataset.trained_texts}
    assert dataset.splits["train"].origins.count("feedback") == dataset.added == 1
    assert "20 left out: validation or test has one of their texts" in " ".join(dataset.notes)


def test_questions_of_a_context_that_is_measured_are_not_trained_on(tmp_path: Path) -> None:
    def lines(name: str, questions: Iterable[tuple[str, int]]) -> str:
        cells = [
            {"question": question, "context": f"it is {at}", "answers": {"text": [f"{at}"], "answer_start": [6]}}
            for question, at in questions
        ]
        (tmp_path / name).write_text("".join(json.dumps(cell) + "\n" for cell in cells))
        return str(tmp_path / name)

    data = lines("data.jsonl", [(f"{word} is it?", at) for at in range(20) for word in ("what", "which")])
    held_out = {context for _, context in load_dataset(data).splits["validation"].texts}
    more = DataOptions(more=lines("more.jsonl", [("how much is it?", at) for at in range(20)]))
    dataset = load_dataset(data, more)
    assert held_out == {context for _, context in dataset.splits["validation"].texts}
    assert not held_out & {context for _, context in dataset.trained_texts}
    assert dataset.added == 20 - len(held_out)


def test_answers_of_feedback_are_learned(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [{"text": f"{at}", "answer_start": 6} for at in range(20)]
    data = [{"question": "how late?", "context": f"it is {at}", "answers": [answers[at]]} for at in range(20)]
    given_answers = [
        ("how late?", "it is 3", [RightSpan(start=0, end=2)]),
        ("how far?", "ten miles", [RightSpan(start=0, end=3)]),
        ("who?", "ten miles", []),
    ]
    facts = {"kind": "correction", "at": datetime(2026, 5, 1, tzinfo=UTC)}
    rows = [
        FeedbackRow(identifier=question, text=question, text_pair=context, spans=spans, **facts)
        for question, context, spans in given_answers
    ]
    dataset = load_dataset(source_of(data), DataOptions(), keep_few=True, extra=_source(rows, "qa"))
    train = dataset.splits["train"]
    assert train.gold[3] == ((0, "it"),)
    assert (train.texts[-1], train.gold[-1], dataset.added) == (("how far?", "ten miles"), ((0, "ten"),), 2)
    assert capsys.readouterr().err == "note: 1 questions of the feedback have no answer, and are left out\n"


def few(added: Sequence[tuple[str, str]]) -> Dataset:
    texts = [(f"the parcel was very {('good', 'bad')[row % 2]} {row}", ("good", "bad")[row % 2]) for row in range(60)]
    tables = [
        Table({"text": [text for text, _ in rows], "label": [label for _, label in rows]}, "data")
        for rows in (texts, added)
    ]
    data, extra = (Source("data", {"train": table}, single_file=True) for table in tables)
    return load_dataset(data, keep_few=True, extra=extra if added else None)


def test_added_rows_change_no_metric(base: Base) -> None:
    runs = [
        Run(TaskInputs(base, few(added), 16), Settings(method="head"), "tone")
        for added in ([], [(f"a hard text {row}", "good") for row in range(900)])
    ]
    assert {run.metric for run in runs} == {"accuracy"}
    assert not any("uneven" in note for run in runs for note in run.notes)


@pytest.mark.parametrize(("rows", "note"), [(0, True), (1, False)])
def test_a_label_that_no_measured_row_has_is_told(rows: int, note: bool) -> None:
    corrected = [("the parcel was very bad 1", "ugly")] * rows
    data = few([*((f"an ugly text {row}", "ugly") for row in range(5)), *corrected])
    assert data.labels == ("bad", "good", "ugly")
    assert ("no measured row has 'ugly': no score says how they are answered" in data.notes) == note
