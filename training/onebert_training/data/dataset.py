"""Turns tables of cells into examples with gold labels, and refuses bad data before any training."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from onebert_encoder.answering.answer import TASK_TYPES
from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.file.delta import listed
from onebert_store.file.manifest import TaskType
from onebert_store.tables.cells import plain
from onebert_store.tables.columns import Columns, find_label, find_texts, remembered, require_texts, texts_of_rows
from onebert_store.tables.labels import (
    are_indices,
    find_names,
    has_labels,
    infer_task_type,
    is_unlabeled,
    join_label_columns,
)
from onebert_store.tables.spans import spans_of, words_of
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source, choose_split, read_source
from onebert_store.tables.text.unicode import is_blank
from onebert_training.data import checks
from onebert_training.data.added import ROWS, join, widened
from onebert_training.data.examples import Cells, Split
from onebert_training.data.options import DataOptions, ReadOptions
from onebert_training.data.splitting import SPLIT_SEED, TOO_FEW_TO_SPARE, subset, with_given_validation, with_held_out


@dataclass(frozen=True)
class Dataset:
    """The examples that a run trains on and is measured on.

    Attributes:
        labels: names of the labels by index; a regression has the one name `score`.
        splits: `train`; `validation`, unless few rows were kept together; `test` if the data has one.
        digest: `digest_of` the data as they were read, before rows were drawn, held out, added or corrected.
        added: number of added rows that are used, to train on or as corrections; None if none were given.
        relabeled: number of measured rows with the label of an added row.
    """

    name: str
    task_type: TaskType
    labels: tuple[str, ...]
    metric: str | None
    splits: Mapping[str, Split]
    digest: str
    notes: tuple[str, ...] = ()
    added: int | None = None
    relabeled: int = 0

    @property
    def has_pairs(self) -> bool:
        return not isinstance(self.splits["train"].texts[0], str)

    @property
    def trained_texts(self) -> tuple[Text, ...]:
        """The texts or pairs that a run trains on, of the data and added, after rows were held out."""
        return self.splits["train"].texts

    @property
    def facts(self) -> dict[str, Any]:
        """Name and digest for manifests and records, and how many added rows are used."""
        facts = {"name": self.name, "digest": self.digest}
        return facts | ({} if self.added is None else {"more": {"rows": self.added, "relabeled": self.relabeled}})


class Labeled(NamedTuple):
    """One split with labels, named `all` for a single file, and the source rows of its examples with all columns.

    `notes` count the rows that were left out; the split has indices of `labels`.
    """

    name: str
    split: Split
    metric: str | None
    source: str
    table: Table
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


def digest_of(task_type: TaskType, labels: Sequence[str], splits: Mapping[str, Split]) -> str:
    """`sha256:…` over task type, labels and every example of every split."""
    hasher = hashlib.sha256(json.dumps([task_type, list(labels)]).encode())
    for name, split in splits.items():
        for i, (text, gold) in enumerate(zip(split.texts, split.plain_gold(), strict=True)):
            words = split.words[i] if split.words else ()
            # Leave out words that follow from the text by splitting it at single spaces.
            unusual = [words] if words and isinstance(text, str) and words != spans_of(text.split(" ")) else []
            soft = [] if split.soft is None else [split.soft[i].tolist()]
            hasher.update(json.dumps([name, text, gold, *unusual, *soft]).encode() + b"\n")
    return f"sha256:{hasher.hexdigest()}"


def load_dataset(
    source: str | Source,
    options: DataOptions = DataOptions(),  # noqa: B008 - frozen
    keep_few: bool = False,
    keep_all: bool = False,
    extra: Source | None = None,
) -> Dataset:
    """Loads data for training, and holds out validation rows if the data has no validation split.

    One fixed seed draws and holds out rows, whatever the run's seed: all runs see the same rows, and a smaller
    `train_rows` draws a subset of a larger one's rows.

    Args:
        source: a file, a folder, `hf:dataset[/config]`, or a `Source` in memory.
        options: `validation_share` holds rows out even if the data has a validation split, which then replaces the test
            split: for benchmarks that hide their test labels (What Parameters to Freeze, section III-B).
        keep_few: hold nothing out of fewer than `TOO_FEW_TO_SPARE` training rows, unless a share or a number is given.
        keep_all: hold nothing out; folds measure the result.
        extra: rows to add to the training split, in place of `options.more`.

    Raises:
        InvalidData: one sentence, with line numbers if rows are bad.
        InvalidSettings: the encoding is unknown.
    """
    share, train_rows = options.validation_share, options.train_rows
    if share is not None and not 0 < share < 1:
        raise InvalidData("the share of the training rows to validate on is above 0 and below 1")
    read = options.read(source) if isinstance(source, str) else source
    if "train" not in read.tables:
        raise InvalidData("the data has no training split")
    guessed = options.task_type is None and read.task_type is None
    read, columns, task_type, notes = usable_rows(read, options, options.task_type)
    tables = dict(read.tables)
    read_as = [note for table in tables.values() for note in table.notes]
    if share is not None and "validation" in tables:
        tables.pop("test", None)
        notes.append("the validation split of the data is the test split")
    read = replace(read, tables=tables)
    names = find_names(read, columns, task_type)
    cells = {split: Cells(table, columns, names[split]) for split, table in tables.items()}
    tables = {split: part.table for split, part in cells.items()}
    notes += [*cells["train"].notes(), *(note for part in cells.values() for note in part.left_out)]
    labels = cells["train"].label_names()
    splits = {name: part.split(labels) for name, part in cells.items()}
    checks.check_validation_labels(splits, task_type, labels)
    digest = digest_of(task_type, labels, splits)
    if share is not None and "validation" in splits:
        splits["test"] = splits.pop("validation")
    doubts = checks.repetitions(splits, task_type, tables["train"])
    rows_there = len(splits["train"])
    splits["train"] = subset(splits["train"], task_type, train_rows, SPLIT_SEED)
    checks.check_variety(splits["train"], task_type)
    checks.check_names(labels, task_type)
    # Rows are divided before others are added: versions of the same data are measured on the same rows.
    splits, held_out_notes = _divided(splits, task_type, options, keep_few, keep_all)
    notes += held_out_notes
    notes += checks.shortages(splits, task_type, labels)
    if train_rows is not None and rows_there < train_rows:
        notes.append(f"only {rows_there:,} training rows exist, not {train_rows:,}")
    notes += [*read_as, *checks.label_doubts(task_type, labels, guessed, splits["train"]), *doubts]
    dataset = Dataset(read.name, task_type, labels, read.metric, splits, digest, tuple(notes))
    by_index = (names["train"].listed or ()) if names["train"].by_index else ()
    if extra is not None:
        return _with_added(dataset, extra, "feedback", options, by_index)
    return dataset if options.more is None else _with_added(dataset, options.more, "more", options, by_index)


def _divided(
    splits: Mapping[str, Split], task_type: TaskType, options: DataOptions, keep_few: bool, keep_all: bool
) -> tuple[dict[str, Split], list[str]]:
    """The splits with validation rows, unless few rows or all of them stay together; and notes."""
    share, rows = options.validation_share, options.validation_rows
    wanted = share is not None or rows is not None
    spares = wanted or not keep_few or len(splits["train"]) >= TOO_FEW_TO_SPARE
    if "validation" not in splits and spares and not keep_all:
        return with_held_out(splits, task_type, share, rows)
    return with_given_validation(splits, task_type, rows)


def _with_added(
    dataset: Dataset, source: str | Source, origin: str, options: DataOptions, by_index: Sequence[str]
) -> Dataset:
    """Adds labeled rows, which correct the rows of the data with the same text in every split.

    The rows have the columns of the data, or else some with usual names; and its indices of the labels `by_index`, or
    else names.
    """
    read = ReadOptions().read(source) if isinstance(source, str) else source
    reading, task_type = ReadOptions().remembering(options.columns, read), dataset.task_type
    unnamed = isinstance(source, str) and not read.label_names
    if unnamed and by_index and are_indices(read, reading.columns, task_type, by_index):
        read = replace(read, label_names={"": tuple(by_index)})
    read, reading, unlike = _in_form(read, reading, dataset.has_pairs)
    loaded = load_split(read, reading, task_type, dataset.labels, "train", widen=True)
    known, least = len(dataset.labels), options.new_label_rows or ROWS
    joined = join(dataset.splits, known, loaded.split.from_origin(origin), loaded.labels, task_type, least)
    checks.check_variety(joined.splits["train"], task_type)
    name = Path(source).name if isinstance(source, str) else source.name
    note, *notes = joined.notes
    return replace(
        dataset,
        labels=joined.labels,
        splits=joined.splits,
        notes=(*dataset.notes, f"rows of {name}: {note}", *notes, *unlike, *loaded.notes),
        added=joined.rows,
        relabeled=joined.relabeled,
    )


def _in_form(read: Source, reading: ReadOptions, pairs: bool) -> tuple[Source, ReadOptions, list[str]]:
    """The training rows that are pairs, or else single texts: the base reads all rows of a task in one form."""
    table = read.tables[choose_split(read, "train")]
    texts = require_texts(table, reading.columns)
    if len(texts) < 2 and not pairs:
        return read, reading, []
    rows = [row for row, cell in enumerate(table[texts[1]]) if pairs != is_blank(plain(cell))] if len(texts) > 1 else []
    form = "single texts, and the data has pairs" if pairs else "pairs, and the data has single texts"
    if not rows:
        raise InvalidData(f"the rows of {table.origin} are {form}")
    if not pairs:
        reading = replace(reading, text=texts[0], text_pair=None)
    if (unlike := table.rows - len(rows)) == 0:
        return read, reading, []
    note = f"{unlike:,} of {table.rows:,} rows of {table.origin} are left out: they are {form}"
    return replace(read, tables={**read.tables, "train": table.take(rows)}), reading, [note]


def load_split(
    source: str | Source,
    reading: ReadOptions,
    task_type: TaskType,
    labels: Sequence[str],
    split: str | None = None,
    widen: bool = False,
) -> Labeled:
    """Loads one labeled split to measure a trained delta on; a single file is taken whole.

    Args:
        labels: the delta's labels; the data's labels are matched by name.
        split: None takes test, else validation, else training.
        widen: whether to take rows with further labels, too.

    Raises:
        InvalidData: one sentence, with the row if one is bad.
    """
    source = reading.read(source) if isinstance(source, str) else source
    read, columns, _, _ = usable_rows(source, reading, task_type)
    name = choose_split(read, split)
    names = find_names(read, columns, task_type, labels)[name]
    cells, folded = Cells(read.tables[name], columns, names, labels), list[str]()
    data_labels = cells.label_names()
    if widen:
        if alike := checks.spelled_as(data_labels, labels):
            cells.names = names.renamed(alike)
            folded.append(f"labels get the task's spelling: {listed(f'{old} is {new}' for old, new in alike.items())}")
        labels = widened(labels, [alike.get(label, label) for label in data_labels], task_type)
    elif data_labels and task_type != "regression" and not set(data_labels) & set(labels):
        theirs, known = checks.listed(data_labels), checks.listed(labels)
        raise InvalidData(f"no label of the data, {theirs}, is one of the task, which has {known}")
    examples = cells.split(tuple(labels))
    rows = cells.table.take(cells.used_rows).only(source.tables[name])
    notes = (*cells.table.notes, *cells.left_out, *folded)
    return Labeled("all" if read.single_file else name, examples, read.metric, read.name, rows, notes, tuple(labels))


def usable_rows(
    source: Source, options: ReadOptions, task_type: TaskType | None
) -> tuple[Source, Columns, TaskType, list[str]]:
    """The source without an unlabeled test split and, by `options`, rows without label or text; columns, type, notes.

    The task type is the given one, else that of the source, else the one that its rows suggest.
    """
    read, columns = join_label_columns(source, options.columns, task_type)
    task_type = task_type or infer_task_type(read, columns)
    tables, notes = dict(read.tables), list[str]()
    if "test" in tables and len(tables) > 1 and not has_labels(tables["test"], columns):
        del tables["test"]
        notes.append("the test split has no labels and is skipped")
    rows_with: dict[str, Callable[[Table], list[int]]] = {}
    if options.drop_unlabeled:
        rows_with["label"] = partial(_labeled, columns, task_type)
    if options.drop_empty:
        rows_with["text"] = partial(_with_text, columns)
    for column, keep in rows_with.items():
        for split, table in tables.items():
            rows = keep(table)
            if not rows:
                raise InvalidData(f"{split} split: no row has a {column}")
            if len(rows) < table.rows:
                tables[split] = table.take(rows)
                notes.append(
                    f"{table.rows - len(rows):,} of {table.rows:,} {split} rows have no {column} and are skipped"
                )
    return replace(read, tables=tables), columns, task_type, notes


def _labeled(columns: Columns, task_type: TaskType, table: Table) -> list[int]:
    if (label := find_label(table, columns)) is None:
        return [*range(table.rows)]
    return [row for row, cell in enumerate(table[label]) if not is_unlabeled(cell, task_type)]


def _with_text(columns: Columns, table: Table) -> list[int]:
    cells = [table[name] for name in find_texts(table, columns) or ()]
    blank = [[is_blank(" ".join(words_of(cell) or ())) for cell in column] for column in cells]
    return [row for row in range(table.rows) if not any(column[row] for column in blank)]


def load_texts(
    source: str,
    columns: Columns,
    encoding: str | None,
    task_type: TaskType = "single_label",
    else_by_name: bool = False,
    split: str | None = None,
) -> tuple[str, list[Text]]:
    """The name of the data, and its texts or pairs.

    Args:
        encoding: encoding of text files without a byte order mark; None detects it.
        split: of a folder; None takes test, else validation, else training.
        else_by_name: find the columns by name if the file lacks the named ones, because `columns` are of other data.

    Raises:
        InvalidData: no rows, a row without text, or texts that the task does not take.
        InvalidSettings: the encoding is unknown.
    """
    read = read_source(source, encoding)
    table = read.tables[choose_split(read, split)]
    if else_by_name:
        columns = remembered(Columns(), columns, table)
    cells = [table[name] for name in require_texts(table, columns)]
    if not TASK_TYPES[task_type].takes(pair=len(cells) == 2):
        raise InvalidData(f"a {task_type} task takes {TASK_TYPES[task_type].question}; say which columns hold that")
    if task_type == "token":
        cells = [[" ".join(words_of(cell) or ()) for cell in column] for column in cells]
    texts = texts_of_rows(table, cells)
    if not texts:
        raise InvalidData(f"{table.origin}: there are no rows")
    return read.name, texts
