"""Checks over many rows: labels, repetitions, contradictions, texts that two splits share."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onebert_encoder.answering.stretches import is_bio
from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.file.fields import label_fault, spelling
from onebert_store.file.manifest import MAX_LABELS, TaskType, check_labels
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion
from onebert_store.tables.slices import MISSING
from onebert_store.tables.table import Table
from onebert_training.data.examples import Split

MAX_SHOWN = 5  # labels that a note names
_OUTSIDE = ("o", "0", "out", "outside", "other")


def _labels_of(split: Split, task_type: TaskType) -> set[int]:
    """Indices of the labels that a split has; empty for task types without a list of labels."""
    counts = split.label_counts(task_type)
    return set() if counts is None else set(np.flatnonzero(counts).tolist())


def check_names(labels: Sequence[str], task_type: TaskType) -> None:
    """Refuses label names that no manifest could hold; names from cells were checked with their rows before."""
    for label in labels:
        if fault := label_fault(label):
            raise InvalidData(f"the name of the label {printable(label, 40)} {fault}")
    if len(labels) > MAX_LABELS:
        raise InvalidData(f"there are {len(labels):,} labels; a task has at most {MAX_LABELS}")
    try:
        check_labels(task_type, labels)
    except ValueError as error:
        raise InvalidData(str(error)) from None


def check_validation_labels(splits: Mapping[str, Split], task_type: TaskType, labels: Sequence[str]) -> None:
    """Refuses data whose validation split has a label that the training split lacks."""
    if "validation" not in splits:
        return
    for label in sorted(_labels_of(splits["validation"], task_type) - _labels_of(splits["train"], task_type)):
        raise InvalidData(f"the validation split has the label {labels[label][:40]!r}, which no training row has")


def check_variety(train: Split, task_type: TaskType, held_out: int = 0) -> None:
    """Refuses training rows that teach nothing: no row has a label, or all have the same."""
    if task_type == "multi_label" and not _labels_of(train, task_type):
        raise InvalidData("no training row has a label")
    one_label = task_type in ("single_label", "token") and len(_labels_of(train, task_type)) < 2
    if one_label or (task_type == "regression" and len(np.unique(train.gold)) < 2):
        unit = "words" if task_type == "token" else "rows"
        if not held_out:
            raise InvalidData(f"all training {unit} have the same label")
        raise InvalidData(
            f"after {held_out:,} of {held_out + len(train):,} training rows were held out for validation, all training "
            f"{unit} that are left have the same label; give more different texts, or a validation split"
        )


def is_number(label: str) -> bool:
    """Whether a label is a number, with a decimal point or comma."""
    try:
        return math.isfinite(float(label.replace(",", ".")))
    except ValueError:
        return False


def shortages(splits: Mapping[str, Split], task_type: TaskType, labels: Sequence[str]) -> list[str]:
    """Notes on gaps of data that can still be trained on: rare or absent labels, tags outside BIO, no test split."""
    notes = []
    train = splits["train"]
    if (counts := train.label_counts(task_type, len(labels))) is not None:
        absent, lonely = ([labels[i] for i in np.flatnonzero(counts == count).tolist()] for count in (0, 1))
        if absent:
            notes.append(f"{len(absent)} of {len(labels)} labels have no training row: {listed(absent)}")
        if lonely and task_type == "single_label":
            which = "label has" if len(lonely) == 1 else "labels have"
            notes.append(f"{len(lonely)} {which} one training row only: {listed(lonely)}")
    if task_type == "token" and "O" in labels and not is_bio(labels):
        notes.append("the tags are not all O, B-x or I-x: words are measured, not entities")
    if (
        task_type == "token"
        and "O" not in labels
        and (outside := [name for name in labels if name.lower() in _OUTSIDE])
    ):
        notes.append(
            f"is {listed(outside)} the tag of words outside of entities? BIO spells it O; here it is one more tag"
        )
    if "test" not in splits:
        notes.append(
            f"no test split: the score {'on validation' if 'validation' in splits else 'of the folds'} is the final one"
        )
    return notes


def label_doubts(task_type: TaskType, labels: Sequence[str], guessed: bool, train: Split) -> list[str]:
    """Notes on labels that may be two spellings of one label, or numbers for a regression."""
    notes = name_doubts(labels) if task_type in ("single_label", "multi_label", "token") else []
    if guessed and task_type == "single_label" and len(labels) > 2 and all(map(is_number, labels)):
        notes.append(
            f"the labels are numbers and taken as {len(labels)} classes; --task-type regression takes them as numbers"
        )
    if guessed and task_type == "multi_label" and np.all(train.gold.sum(axis=1) == 1):
        notes.append("every row has exactly one label; --task-type single_label trains a task of which one is right")
    return notes


def name_doubts(labels: Sequence[str]) -> list[str]:
    """Notes on names that may be two spellings of one label, or none."""
    notes, alike = [], defaultdict[str, list[str]](list)
    for name in labels:
        alike[spelling(name)].append(name)
    for names in (names for names in alike.values() if len(names) > 1):
        simple = len({" ".join(name.casefold().split()) for name in names}) == 1
        how = "case or spaces" if simple else "case, invisible characters or equivalent letters of Unicode"
        notes.append(f"the labels {listed(names)} differ in {how} alone")
    if missing := [name for name in labels if name.strip().casefold() in MISSING]:
        notes.append(f"the label {listed(missing)} looks like a missing label; only empty cells count as missing")
    return notes


def spelled_as(names: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Name -> the known name, or else the first one, from which it differs in its spelling alone."""
    first = dict[str, str]()
    for name in (*known, *names):
        first.setdefault(spelling(name), name)
    return {name: first[spelling(name)] for name in names if name not in known and first[spelling(name)] != name}


class Repeated(NamedTuple):
    """Equal texts of a split: `rows` that repeat text and answer, `torn` rows of each text with several answers."""

    rows_of: Mapping[Text, list[int]]
    rows: int
    torn: list[list[int]]


def repeated(split: Split, task_type: TaskType) -> Repeated:
    """Groups the rows of a split by text."""
    rows_of = defaultdict[Text, list[int]](list)
    for row, text in enumerate(split.texts):
        rows_of[text].append(row)
    gold = [tuple(answer) if isinstance(answer, list) else answer for answer in split.plain_gold()]
    several = [(rows, len({gold[row] for row in rows})) for rows in rows_of.values() if len(rows) > 1]
    # A regression often has one text with several numbers, from several people: no contradiction.
    torn = [rows for rows, answers in several if answers > 1 and task_type != "regression"]
    return Repeated(rows_of, sum(len(rows) - answers for rows, answers in several), torn)


def repetitions(splits: Mapping[str, Split], task_type: TaskType, train: Table) -> list[str]:
    """Notes on repeated and contradictory training rows, and on texts of other splits that training has as well."""
    repeats = repeated(splits["train"], task_type)
    notes = []
    if rows := repeats.rows:
        notes.append(f"{rows:,} training {'row repeats' if rows == 1 else 'rows repeat'} another row")
    if torn := repeats.torn:
        which = "text has" if len(torn) == 1 else "texts have"
        example = train.where(torn[0])
        notes.append(f"{len(torn):,} training {which} different {_ANSWERS[task_type]}, for example {example}")
    for name, split in splits.items():
        if name != "train" and (leaked := sum(text in repeats.rows_of for text in split.texts)):
            notes.append(f"{leaked:,} of {len(split):,} {name} rows have a text that is in the training split, too")
    return notes


_ANSWERS: Mapping[TaskType, str] = {
    "single_label": "labels",
    "multi_label": "labels",
    "token": "tags",
    "span": "answers",
}


def listed(names: Iterable[str], notes: Sequence[str] = ()) -> str:
    """Quotes at most `MAX_SHOWN` names, each with its note in brackets if there are notes."""
    quoted = [repr(name[:40]) for name in names]
    if notes:
        quoted = [f"{name} ({note})" for name, note in zip(quoted, notes, strict=True)]
    rest = len(quoted) - MAX_SHOWN
    return ", ".join(quoted[:MAX_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def positives_of(option: str | None, labels: Sequence[str]) -> list[str]:
    """The labels that `--positive` names; a label whose name has a comma must be named alone."""
    if option is None:
        return []
    names = [option] if option in labels else list(dict.fromkeys(name.strip() for name in option.split(",")))
    if strangers := [name for name in names if name not in labels]:
        hint = suggestion(strangers[0], labels) or f"; it has {listed(labels)}"
        raise InvalidSettings(f"--positive {printable(strangers[0], 40)} is no label of the task{hint}")
    return names
