"""Spans of characters, as programs for labeling write them, and the one way from spans to words with tags."""

import ast
import re
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from onebert_store.file.fields import spelling
from onebert_store.tables.cells import BadRow, Nested, parse_list, plain
from onebert_store.tables.text.json_rows import parse_json

_SINGLE = "㐀-鿿豈-\ufaff\U00020000-\U0003ffff"
# Words between blanks, like joined tagged words; or runs of letters and digits, and each mark or ideograph alone.
BETWEEN_BLANKS = re.compile(r"\S+")
AT_PUNCTUATION = re.compile(rf"[{_SINGLE}]|[ぁ-ゟ]+|[゠-ヿ]+|[^\W_ぁ-ヿ{_SINGLE}]+|\S")
_PYTHON = re.compile(r"\s*\[\s*[\[({].{0,65536}", re.S)  # lists in a list, as pandas writes them to a CSV
# A sentence may start with a bracket, but not like this: only a written list does.
_LIST = re.compile(r"""(?:array\()?\[\s*(?:['"]|np\.)""")
_STARTS, _ENDS = ("start", "start_offset"), ("end", "end_offset")


class Span(NamedTuple):
    """The slice `text[start:end]` in code points, with its label; `text` is what the program says that it is."""

    start: int
    end: int
    label: str
    text: str = ""


class TaggedWords(list[str]):
    """The BIO tags of a text's words; `places` has the slice of each word."""

    def __init__(self, tags: Iterable[str], places: Sequence[tuple[int, int]]) -> None:
        super().__init__(tags)
        self.places = tuple(places)


def spans_in(cell: Any) -> list[Span] | None:
    """Returns a cell's spans in their order; None if it holds anything else.

    Args:
        cell: a list, or one as JSON or Python writes it, of `[start, end, label]` or of objects with start, end and
            label or labels.
    """
    if isinstance(cell, str) and cell.lstrip()[:1] == "[":
        cell = _decoded(cell)
    if not isinstance(cell, list | tuple):
        return None
    spans = [_spans(item) for item in cell]
    return None if None in spans else sorted(span for several in spans for span in several or ())


def _decoded(text: str) -> Any:
    with suppress(ValueError):
        return parse_json(text)
    if _PYTHON.fullmatch(text):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of a backslash that begins no escape
            return ast.literal_eval(text.strip())
    return text


def _spans(item: Any) -> list[Span] | None:
    text = item.get("text") if isinstance(item, dict) else None
    if isinstance(item, dict):
        ends = (next((item[name] for name in names if name in item), None) for names in (_STARTS, _ENDS))
        item = (*ends, item.get("label") or item.get("labels"))
    if not isinstance(item, list | tuple) or len(item) < 3 or any(type(end) is not int for end in item[:2]):
        return None
    labels = item[2] if isinstance(item[2], list) else [item[2]]
    spelled = labels and all(isinstance(label, str) and label.strip() for label in labels)
    text = text if isinstance(text, str) else ""
    return [Span(item[0], item[1], label.strip(), text) for label in labels] if spelled else None


def have_spans(cells: Iterable[Any], empty: bool = False) -> bool:
    """True if a column's cells hold spans: one does; `empty`: or all are empty lists, for texts without entities."""
    spans = [spans_in(cell) for cell in cells]
    return any(spans) or (empty and len(spans) > 0 and all(each is not None for each in spans))


def find_words(rows: Iterable[tuple[Any, Any]]) -> re.Pattern[str]:
    """Returns the words for rows of (text, cell): those between blanks, unless a span ends at punctuation in one."""
    for text, cell in rows:
        spans = spans_in(cell) if isinstance(text, str) else None
        if spans and _fit(text, spans, AT_PUNCTUATION) > _fit(text, spans, BETWEEN_BLANKS):
            return AT_PUNCTUATION
    return BETWEEN_BLANKS


def _fit(text: str, spans: Iterable[Span], words: re.Pattern[str]) -> int:
    starts, ends, edges = *_words(text, words), list[tuple[int, int]]()
    for span in spans:
        with suppress(BadRow):
            edges.append(_edges_of(span, text))
    return sum(first in starts and last in ends for first, last in edges)


def tagged(text: str, spans: Iterable[Span], words: re.Pattern[str], labels: Collection[str] = ()) -> TaggedWords:
    """Returns the words of a text with the BIO tags of its `used_spans`.

    Args:
        words: `BETWEEN_BLANKS` or `AT_PUNCTUATION`.
        labels: of a trained task; where its tags mark no entities, each word of a span has the span's label.

    Raises:
        BadRow: a span is not in the text, overlaps another one or cuts a word; or the trained task has no tag for an
            entity of several words, or for words outside.
    """
    starts, ends = _words(text, words)
    tags, before = ["O"] * len(starts), 0
    for first, last, label in used_spans(spans, text):
        if first < before:
            raise BadRow("two spans overlap")
        if first not in starts or last not in ends:
            raise BadRow("a span cuts a word")
        before, (begin, end) = last, (starts[first], ends[last] + 1)
        tags[begin:end] = _tags(label, end - begin, labels)
    if labels and "O" in tags and "O" not in labels:
        raise BadRow("a word is in no span, and the task has no tag O")
    return TaggedWords(tags, tuple(zip(starts, ends, strict=True)))


def _words(text: str, words: re.Pattern[str]) -> tuple[dict[int, int], dict[int, int]]:
    # Marks, and joiners between letters, are letters of the word that they are in.
    drawn = text if text.isascii() else "".join("a" if _is_joined(char) else char for char in text)
    places = [place for match in words.finditer(drawn) if (place := _inner(text, *match.span()))]
    return {start: word for word, (start, _) in enumerate(places)}, {end: word for word, (_, end) in enumerate(places)}


def _is_joined(char: str) -> bool:
    kind = unicodedata.category(char)
    return kind[0] == "M" or kind == "Cf"


def _inner(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Returns a slice without blanks and characters without width at its ends; None if nothing else is in it."""

    def unseen(char: str) -> bool:
        return char.isspace() or unicodedata.category(char) == "Cf"

    while start < end and unseen(text[start]):
        start += 1
    while start < end and unseen(text[end - 1]):
        end -= 1
    return (start, end) if start < end else None


def words_of(cell: Any) -> list[str] | None:
    """The words of a cell: a list, a list written as text, or words joined by spaces; None for any other cell."""
    if isinstance(cell, str) and _LIST.match(cell):
        try:
            cell = parse_list(cell) or cell
        except Nested:
            return None
    if isinstance(cell, str):
        return [word for word in cell.split(" ") if word]
    if isinstance(cell, list) and all(isinstance(word, str) for word in cell):
        return [word.strip() for word in cell]
    return None


def spans_of(words: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """The span of each word in the text that joins the words by single spaces."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(spans)


def used_spans(spans: Iterable[Span], text: str) -> list[tuple[int, int, str]]:
    """Returns the slices with their labels that training uses, in order, each once.

    They have no blanks and no characters without width at their ends, and the marks behind them. Raises BadRow for a
    span that is not in the text.
    """
    return sorted({(*_edges_of(span, text), span.label) for span in spans})


def answer_key(answer: Any, text: Any = None) -> frozenset[Any]:
    """Returns what training uses of a person's answer, its labels by their `spelling`: equal for equal answers.

    Args:
        answer: one label, a list of labels, or spans as `spans_in` reads them.
        text: of the spans.
    """
    if spans := spans_in(answer):
        try:
            used = used_spans(spans, text) if isinstance(text, str) else [span[:3] for span in spans]
        except BadRow:
            used = [span[:3] for span in spans]
        return frozenset((start, end, spelling(label)) for start, end, label in used)
    return frozenset(spelling(plain(name)) for name in (answer if isinstance(answer, list | tuple) else [answer]))


def _edges_of(span: Span, text: str) -> tuple[int, int]:
    if not 0 <= span.start <= span.end <= len(text):
        raise BadRow("a span is outside of its text")
    if (edges := _inner(text, span.start, span.end)) is None:
        raise BadRow("a span is empty")
    first, last = edges
    # Label Studio counts an emoji as two (issue 1347 of HumanSignal/label-studio).
    inner = _inner(span.text, 0, len(span.text))
    if inner and span.text[slice(*inner)].split() != text[first:last].split():
        raise BadRow("a span's own text is elsewhere: its start and end count no code points")
    while last < len(text) and unicodedata.category(text[last]) in ("Mn", "Me"):
        last += 1
    return first, last


def _tags(label: str, count: int, labels: Collection[str]) -> list[str]:
    """Returns the tags of a span's words; a task may have entities without a B- (IOB1), or no entities."""
    marked = all(name == "O" or name.startswith(("B-", "I-")) for name in labels)
    # Tags without O mark no entities, and an answer has them as they are.
    if not marked or (label in labels and "O" not in labels):
        return [label] * count
    first, other = f"B-{label}", f"I-{label}"
    if label.startswith(("B-", "I-")) and first not in labels and other not in labels:
        raise BadRow(f"a span has the label of its entity, without the mark of a tag: {label[2:]}")
    if count > 1 and first in labels and other not in labels:
        raise BadRow(f"a span has several words, and the task has no tag {other}")
    return [other if first not in labels and other in labels else first] + [other] * (count - 1)
