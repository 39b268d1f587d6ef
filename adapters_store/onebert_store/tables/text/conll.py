"""Reads CoNLL and IOB files: a word per line, its tag in the last column, blank lines between sentences."""

import re
from collections.abc import Iterable, Iterator

from onebert_store.errors import InvalidData
from onebert_store.tables.text.lines import Lines, LongRow

COLUMNS = ("tokens", "ner_tags")

_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile(r"#\s*\w+\s*[=:]|#\s*https?:")
_TAGGED = re.compile(r"\S.*[ \t](?:O|[BIESLU]-\S+)\s*")


def are_tagged(lines: Iterable[tuple[int, str]]) -> bool:
    """True if every line is a word with an entity tag or `O`; False without lines."""
    tagged = False
    for _, line in lines:
        if not line.startswith((_DOCUMENT, "#")):
            if not _TAGGED.fullmatch(line):
                return False
            tagged = True
    return tagged


def sentences(lines: Lines, name: str, word: int = 0) -> Iterator[tuple[int, tuple[str, str], str]]:
    """Yields first line, words and tags joined by spaces, and fault; `word` is the words' column. Skips comments."""
    number, first, rows = 0, 0, list[list[str]]()
    while True:
        number += 1
        try:
            line = next(lines, None)
        except LongRow as error:
            raise InvalidData(f"{name} line {number}: {error}") from None
        if line is None or not line.strip():
            if rows:
                yield first, *_sentence(rows, word)
            rows = []
            lines.begin_row()
            if line is None:
                return
        elif not line.startswith(_DOCUMENT) and not (not rows and _COMMENT.match(line)):
            first = first if rows else number
            rows.append(line.rstrip("\r\n").split("\t") if "\t" in line else line.split())


def are_numbered(sentences: Iterable[tuple[int, tuple[str, str], str]]) -> bool:
    """True if the first column counts the words of every sentence."""
    counted = (words.split(" ") for _, (words, _), _ in sentences)
    return all(words == [str(place) for place in range(1, len(words) + 1)] for words in counted)


def _sentence(rows: list[list[str]], word: int) -> tuple[tuple[str, str], str]:
    words, tags = [row[word % len(row)].strip() for row in rows], [row[-1].strip() for row in rows]
    fault = ""
    if len({len(row) for row in rows}) > 1 or len(rows[0]) < 2 + word:
        fault = "a word of the sentence has no tag, or more columns than the others"
    elif not all(words) or any(" " in cell for cell in (*words, *tags)):
        fault = "a word of the sentence is empty or has a blank in it"
    return (" ".join(words), " ".join(tags)), fault
