"""The inputs of `onebert classify`, arguments or lines of standard input, and the answers to them by requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, BinaryIO

import typer

from onebert_server.client import Client, Input, TaskResult
from onebert_server.client.questions import item_of
from onebert_server.limits import MAX_ITEMS
from onebert_store.errors import AnswerNotFinite, InvalidInput, OneBertError, TooLarge


@dataclass(frozen=True)
class TextRow:
    """An input, and its place from 1: the `number` of an argument, or the `line` of standard input."""

    input: Input
    number: int = 0
    line: int = 0

    @property
    def where(self) -> str:
        """The place, in words."""
        return f"line {self.line}" if self.line else f"input {self.number}"

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the input, by the name of their field."""
        return item_of(self.input)


def from_arguments(texts: list[str], pair: bool) -> Iterator[TextRow]:
    """Texts of the command line, two by two for pairs."""
    if pair and len(texts) % 2:
        raise typer.BadParameter("pairs need an even number of texts")
    inputs: Iterable[Input] = zip(texts[::2], texts[1::2], strict=True) if pair else texts
    return (TextRow(text, number=number) for number, text in enumerate(inputs, 1))


def from_lines(stream: BinaryIO, pair: bool) -> Iterator[TextRow]:
    """Non-blank lines, with the line ends of tables; pairs are split at their tab.

    Raises InvalidInput at a line that is not UTF-8 or holds no pair.
    """
    from onebert_store.tables.text.lines import numbered_lines  # noqa: PLC0415 - arguments need none of it
    from onebert_store.tables.text.unicode import is_unicode, text_fault  # noqa: PLC0415

    text = TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        for number, line in numbered_lines(text, "standard input"):
            if not is_unicode(line):
                raise InvalidInput(f"line {number} is not UTF-8")
            content = line.rstrip("\r\n")
            if not pair:
                yield TextRow(content, line=number)
                continue
            texts = content.split("\t")
            if len(texts) != 2 or text_fault(*texts):
                raise InvalidInput(f"line {number} does not hold two texts")
            yield TextRow((texts[0], texts[1]), line=number)
    finally:
        text.detach()


def classify_rows(
    client: Client, reference: str, rows: Iterable[TextRow], options: Mapping[str, Any]
) -> Iterator[tuple[Sequence[TextRow], Sequence[TaskResult]]]:
    """The rows of each request with their results, all by one version; those before an error come before it."""
    for part in _parts(rows):
        for answered, results in _answered(client, reference, part, options):
            # The whole input gets one version, even if the alias moves meanwhile.
            reference = f"{results[0].task}@{results[0].version}"
            yield answered, results


def _answered(
    client: Client, reference: str, part: Sequence[TextRow], options: Mapping[str, Any]
) -> Iterator[tuple[Sequence[TextRow], Sequence[TaskResult]]]:
    """One request for the rows; one for each row if it is refused for an input, which the error then names."""
    try:
        results = client.classify(reference, [row.input for row in part], **options)
    except (AnswerNotFinite, InvalidInput, TooLarge) as error:
        if len(part) == 1:
            error.detail = _located(error, part[0])
            raise
    else:
        yield part, results
        return
    for row in part:
        yield from _answered(client, reference, [row], options)


def _located(error: OneBertError, row: TextRow) -> str:
    """The error with the row's place; an error of the request's options has none."""
    detail = error.detail.removeprefix("input 0: ")
    about_options = isinstance(error, InvalidInput) and detail == error.detail
    return detail if about_options else f"{row.where}: {detail}"


def _parts(rows: Iterable[TextRow]) -> Iterator[list[TextRow]]:
    """The rows of one request each; larger ones would delay the first results.

    The rows before one that cannot be read come before its error.
    """
    part = list[TextRow]()
    try:
        for row in rows:
            part.append(row)
            if len(part) == MAX_ITEMS:
                yield part
                part = []
    except OneBertError:
        if part:
            yield part
        raise
    if part:
        yield part
