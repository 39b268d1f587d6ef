"""Finds how a column's label cells are written: one name, a list, or names with the separator that the user gives."""

import ast
import math
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onebert_store.errors import InvalidData
from onebert_store.file.manifest import TaskType
from onebert_store.file.strict_json import printable
from onebert_store.tables.text.json_rows import parse_json

# repr() of sets, of numpy's arrays and of its scalars.
_CALL = re.compile(r"(?:(?:np|numpy)\.)?(?:array|set|frozenset|list|tuple)\((.*?)(?:,\s*dtype=[^,()]+)?\)", re.S)
_SCALAR = re.compile(r"\b(?:np|numpy)\.\w+\(([^()]*)\)")
_BLANK, _COMMA = re.compile(r"""(['"])\s+(?=['"])"""), re.compile(r"""['"]\s*,\s*['"]""")
_MARK = re.compile(r"""['"\[\](){}]""")
_LONGEST = 2**20  # characters of a list
# A name may also start with a bracket; a text with one of these beginnings is certainly a list.
_SURE = re.compile(
    r"""[\[({]\s*(?:['"]|np\.|numpy\.)|[\[{](?:[-+.,\d\s]*[\]}])?$|(?:(?:np|numpy)\.)?(?:array|(?:frozen)?set|list)\("""
)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?")
_DECIMAL = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3},\d{3}")


class BadRow(Exception):
    """The reason why one row cannot be used."""


class Nested(Exception):
    """A list contains lists or objects."""


@dataclass(frozen=True)
class Form:
    """How the cells of a label column are written.

    Attributes:
        lists: texts in brackets are lists.
        separator: stands between names in a text; None: a text is one name.
        comma: numbers have a decimal comma.
        note: tells the user what may be read otherwise; empty if nothing may.
    """

    lists: bool = False
    separator: str | None = None
    comma: bool = False
    note: str = ""

    def names(self, cell: Any) -> list[Any]:
        """Splits a cell into names, none if it is empty; raises BadRow for what names nothing, and for half a list."""
        items = cell if isinstance(cell, list | tuple | set | frozenset) else (cell,)
        if nameless := next((item for item in items if isinstance(item, bytes | timedelta)), None):
            raise BadRow(f"the label is {'a duration' if isinstance(nameless, timedelta) else 'binary, and not UTF-8'}")
        if items is cell:
            return list(items) if isinstance(items, list | tuple) else sorted(items, key=str)
        text = plain(cell)
        if self.lists and _begins_list(text):
            if (parsed := parse_list(text)) is None:
                raise BadRow("the list of labels cannot be read")
            return parsed
        if self.separator is None:
            return [cell] if text else []
        return _parts(text, self.separator)

    def number(self, cell: Any) -> float:
        """Parses a cell's number; raises ValueError, TypeError or OverflowError if it has none."""
        return float(plain(cell).replace(".", "").replace(",", ".") if self.comma else cell)


def plain(cell: Any) -> str:
    """Converts a label cell to text: 1.0 becomes "1", as columns with missing cells store 1; a missing cell ""."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def parse_list(text: str) -> list[Any] | None:
    """Parses a list as JSON, Python, numpy or a database writes it; None if it is no list, Nested if it is nested."""
    called = _CALL.fullmatch(text.strip())
    text = (called[1].strip() or "[]") if called else text.strip()
    if len(text) > _LONGEST or text[:1] + text[1:][-1:] not in ("[]", "()", "{}"):
        return None
    python = _SCALAR.sub(r"\1", text)
    if not _COMMA.search(python):  # numpy writes no commas
        python = _BLANK.sub(r"\1, ", python)
    for read, written in ((parse_json, text), (ast.literal_eval, python)):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = read(written)
            return _flat(value if isinstance(value, list | tuple | set) else [value] if value else [])
    inside = text[1:-1].strip()
    if inside[:1] in ("[", "(", "{"):
        raise Nested
    if _MARK.search(inside):
        return None
    numbers = inside.split()
    if all(map(_NUMBER.fullmatch, numbers)):
        return [number.removesuffix(".") for number in numbers]
    return [item.strip() for item in inside.split(",")]


def _flat(value: Iterable[Any]) -> list[Any]:
    items = sorted(value, key=str) if isinstance(value, set) else list(value)
    if any(isinstance(item, list | tuple | dict) for item in items):
        raise Nested
    if ... in items:
        raise ValueError
    return items


def _begins_list(text: str) -> bool:
    return text[:1] in ("[", "(", "{") or _SURE.match(text) is not None


def _parts(text: str, separator: str) -> list[str]:
    return text.split() if separator == " " else [part.strip() for part in text.split(separator) if part.strip()]


def find_form(
    cells: Sequence[Any], task_type: TaskType | None, separator: str | None = None, known: Collection[str] = ()
) -> Form:
    """Finds how a column's cells, of all splits, are written; the order of the cells never matters.

    `separator` is the user's choice, None takes a text for one name; `known` are names that certainly are labels, and
    their indices.
    Raises InvalidData if the cells hold nested lists, objects, or a 0 or 1 per label.
    """
    if task_type == "span":
        return Form()
    texts = {plain(cell) for cell in cells if not isinstance(cell, list | tuple | set | frozenset | dict)} - {""}
    if task_type == "regression":
        return Form(comma=decimal_commas(texts))
    packed = {text for text in texts if _begins_list(text)} - {*known}
    lists = _have_lists(cells, packed, mixed=texts > packed, tags=task_type == "token")
    if separator is not None:
        return Form(lists, separator.strip() or " ")
    if task_type == "token":
        return Form(lists, " ")
    notes = ["the label cells are read as lists"] if lists else []
    names = {*texts, *known}
    joined = ((name, mark) for name in sorted(texts - {*known}) for mark in "|;,")
    for name, mark in joined:
        if len(parts := _parts(name, mark)) > 1 and not names.isdisjoint(parts):
            notes.append(f"the label {printable(name, 40)!r} is one name; --label-separator {mark!r} reads several")
            break
    return Form(lists, note="; ".join(notes))


def _have_lists(cells: Iterable[Any], packed: Collection[str], mixed: bool, tags: bool) -> bool:
    """True if texts in brackets are lists; `mixed`: there are also texts without brackets."""
    rows = [list(cell) if isinstance(cell, list | tuple) else [cell] for cell in cells if not isinstance(cell, str)]
    try:
        for row in rows:
            _flat(row)
        parsed = {text: parse_list(text) for text in packed}
    except Nested:
        example = next(cell for cell in cells if _is_nested(cell))
        raise InvalidData(
            f"the label cells hold lists in lists, or objects, as {printable(str(example), 40)}: neither names "
            "nor spans [start, end, label] of a token task"
        ) from None
    lists = any(map(_SURE.match, packed)) or (not mixed and all(parsed.values()))
    vectors = [cell for cell in cells if isinstance(cell, list)]
    vectors += [items for items in parsed.values() if items]
    if not tags and _are_zeros_and_ones(vectors):
        raise InvalidData(
            f"the label cells hold a 0 or 1 for each label, as {printable(str(vectors[0]), 40)}, and no names; give "
            "lists of names, or a column for each label and --label a,b,c"
        )
    return bool(packed) and lists


def _is_nested(cell: Any) -> bool:
    try:
        _flat(cell if isinstance(cell, list | tuple) else [cell])
        if isinstance(cell, str):
            parse_list(cell)
    except Nested:
        return True
    return False


def _are_zeros_and_ones(rows: Sequence[Sequence[Any]]) -> bool:
    alike = len({len(row) for row in rows}) == 1 and all(plain(item) in ("0", "1") for row in rows for item in row)
    return alike and any(len(set(map(plain, row))) < len(row) for row in rows)


def decimal_commas(texts: Collection[str]) -> bool:
    """True if commas in the numbers are decimal points and not thousands separators."""
    numbers = [text for text in texts if text and not text.strip("+-.,0123456789")]
    commas = [text for text in numbers if "," in text]
    return all(map(_DECIMAL.fullmatch, numbers)) and not all(map(_THOUSANDS.fullmatch, commas))
