"""Which column holds what, which task type the cells are of, and what a label cell spells."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args

from onebert_store.errors import InvalidData
from onebert_store.manifest import TaskType
from onebert_training.tables import Source, Table, parse_json
from onebert_training.words import tags_of

# Pairs stand before single texts, and of several that fit the first wins.
TEXT_COLUMNS: Sequence[tuple[str, ...]] = (
    *(("text", "text_pair"), ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2")),
    *(("premise", "hypothesis"), ("question", "sentence"), ("query", "passage"), ("question", "context")),
    *((name,) for name in ("text", "sentence", "sentence1", "question", "utterance", "premise", "query")),
    *((name,) for name in ("content", "message", "review", "title")),
)
WORD_COLUMNS: Sequence[tuple[str, ...]] = (("tokens",), ("words",))
TAG_COLUMNS = ("ner_tags", "tags", "pos_tags")
ANSWER_COLUMN = "answers"
LABEL_COLUMNS = ("label", "labels", "target", "score", "class", "category", "intent", *TAG_COLUMNS, ANSWER_COLUMN)
TASK_TYPE_ALIASES: Mapping[str, TaskType] = {"extractive_qa": "span"}
AMBIGUOUS = (
    "the label cells can be names or indices of the labels listed beside the data; "
    "list labels that are not numbers if the cells are indices, list none if they are names"
)


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; None is found by name."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.text_pair is not None and self.text is None:
            raise InvalidData("a column for text_pair needs one for text, too")


def find_label(table: Table, columns: Columns) -> str | None:
    """Name of the column that holds the labels; None where it is not there."""
    if columns.label is not None:
        return columns.label if columns.label in table else None
    by_lower = {name.lower(): name for name in table}
    return next((by_lower[name] for name in LABEL_COLUMNS if name in by_lower), None)


def find_texts(table: Table, columns: Columns) -> tuple[str, ...] | None:
    """Names of the one or two columns that hold the text; None where they are not there."""
    if columns.text is not None:
        wanted = (columns.text,) if columns.text_pair is None else (columns.text, columns.text_pair)
        return wanted if all(name in table for name in wanted) else None
    by_lower = {name.lower(): name for name in table}
    # Tags are of words; a text beside them may be split otherwise.
    tagged = (find_label(table, columns) or "").lower() in TAG_COLUMNS
    ranked = (*WORD_COLUMNS, *TEXT_COLUMNS) if tagged else (*TEXT_COLUMNS, *WORD_COLUMNS)
    found = next((names for names in ranked if all(name in by_lower for name in names)), None)
    return None if found is None else tuple(by_lower[name] for name in found)


def find_columns(split: str, table: Table, columns: Columns) -> tuple[tuple[str, ...], str]:
    """Names of the text columns and of the label column; raises InvalidData where one is missing."""
    texts, label = find_texts(table, columns), find_label(table, columns)
    there = ", ".join(name[:40] for name in list(table)[:10])
    if texts is None:
        which = "no text column; say which with --text" if columns.text is None else f"no column {columns.text}"
        raise InvalidData(f"{split} split: {which} (the columns are {there})")
    if label is None:
        which = "no label column; say which with --label" if columns.label is None else f"no column {columns.label}"
        raise InvalidData(f"{split} split: {which} (the columns are {there})")
    return texts, label


def infer_task_type(read: Source, columns: Columns) -> TaskType:
    """The task type that the source names, else the one that the training split looks like.

    Words or a column of tags are a token task, answers with their places a span task; of the other labels lists or `|`
    are multi_label, fractions regression, the rest single_label.
    """
    if read.task_type is not None:
        known: tuple[TaskType, ...] = get_args(TaskType)
        named = TASK_TYPE_ALIASES.get(str(read.task_type), read.task_type)
        for task_type in known:
            if task_type == named:
                return task_type
        raise InvalidData(f"task type {str(read.task_type)[:40]!r} is not supported; {', '.join(known)} are")
    table = read.tables["train"]
    texts, label = find_columns("train", table, columns)
    cells = table[label]
    spelled = [plain(cell) for cell in cells]
    if label.lower() == ANSWER_COLUMN or any("answer_start" in text for text in spelled):
        return "span"
    are_words = (texts[0].lower(),) in WORD_COLUMNS or any(isinstance(cell, list) for cell in table[texts[0]])
    if are_words or label.lower() in TAG_COLUMNS:
        return "token"
    if any(isinstance(cell, list) or "|" in text or text[:1] == "[" for cell, text in zip(cells, spelled, strict=True)):
        return "multi_label"
    return "regression" if _are_fractions(spelled) else "single_label"


def _are_fractions(texts: Sequence[str]) -> bool:
    try:
        return any(not float(text).is_integer() for text in texts)
    except ValueError:
        return False


def cells_are_indices(tables: Iterable[Table], columns: Columns, read: Source, task_type: TaskType) -> bool | None:
    """Whether label cells are indices into the source's list of names, by all splits at once; None: it cannot be told.

    Cells of both kinds may be mixed as long as none can be read in two ways.
    """
    names, indices, both = set[str](), set[str](), set[str]()
    for table in tables:
        label = find_label(table, columns)
        if label is None:
            continue
        if label in read.label_names:
            return True  # the column's own type says so
        listed = read.label_names.get("", ())
        if not listed:
            continue
        cells = _distinct(table[label], set(listed), task_type)
        names |= cells & set(listed)
        places = {spelled: listed[at] for spelled in cells if (at := index_of(spelled, listed)) is not None}
        indices |= places.keys()
        both |= {spelled for spelled, name in places.items() if spelled in listed and spelled != name}
    if both and not (names < indices or indices < names):
        return None
    return names < indices


def _distinct(cells: Sequence[Any], names: Collection[str], task_type: TaskType) -> set[str]:
    """The label cells as texts; what is not a name as a whole may be several labels."""
    parts = tags_of if task_type == "token" else several
    found = set[str]()
    for cell in cells:
        spelled = plain(cell)
        found |= {spelled} if spelled in names else set(map(plain, parts(cell)))
    return found


def plain(cell: Any) -> str:
    """A label cell as text; 1.0 from a column with gaps is 1."""
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def index_of(spelled: str, names: Sequence[str]) -> int | None:
    """The index that a label cell spells, if there is a name at it."""
    # The length is checked first: int() refuses thousands of digits with an error of its own.
    if spelled.isdecimal() and len(spelled) < 10 and int(spelled) < len(names):
        return int(spelled)
    return None


def several(cell: Any) -> list[Any]:
    """The labels in a cell of a multi_label task: a list, a JSON list, or names joined by `|`; empty is none."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with suppress(ValueError):
            cell = parse_json(cell)
    if isinstance(cell, list):
        return cell
    return [part for part in plain(cell).split("|") if part.strip()]
