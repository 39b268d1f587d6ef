"""Answers rows through a server, one request after the other, and finds the input that a refused request is about."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from onebert_server.cli.classify.rows import Row
from onebert_server.client import Client, TaskResult, as_dict
from onebert_server.limits import MAX_ITEMS
from onebert_store.errors import AnswerNotFinite, InvalidInput, OneBertError, TooLarge

# A result, or the reason why the row has no answer.
Answer: TypeAlias = TaskResult | str

# The most rows of a window; rows without an input are in it, too.
_MOST_ROWS = 64 * MAX_ITEMS
_INPUT = re.compile(r"\binput (\d{1,9})\b")


def answer_of(row: Row, result: TaskResult) -> dict[str, Any]:
    """The fields of an answer; spans have their text, because offsets count code points, which some readers do not."""
    fields, halves = as_dict(result), row.halves
    last = [*halves][-1]
    explained = fields.get("explanation", {}).get("words", ())
    for found in (*fields.get("words", ()), *fields.get("entities", ()), *explained):
        found["text"] = halves[found.get("field", last)][found["start"] : found["end"]]
    return fields


class Remote:
    """A task of a server with the options of every request; the first answer pins the version for all rows.

    With `go_on`, the error of a refused input is its answer; otherwise the error ends the answers.
    """

    def __init__(self, client: Client, ref: str, wanted: Mapping[str, Any], go_on: bool = False) -> None:
        self._client, self._ref, self._wanted, self._go_on = client, ref, wanted, go_on
        self._answered = False

    def windows(self, rows: Iterable[Row]) -> Iterator[tuple[Sequence[Row], list[Answer]]]:
        """The rows of one request after the other with their answers; those before an error come before it."""
        for window in _windows(rows):
            found, answers = self._ask([row for row in window if not row.fault]), list[Answer]()
            try:
                for row in window:
                    answers.append(f"{row.where}: {row.fault}" if row.fault else next(found))
            except OneBertError:
                if answers:
                    yield window[: len(answers)], answers
                raise
            yield window, answers

    def _ask(self, rows: Sequence[Row]) -> Iterator[Answer]:
        """Halves a refused request until it holds only the input that is refused."""
        waiting = [rows]
        while waiting:
            part = waiting.pop()
            if not part:
                continue
            try:
                inputs = [row.input for row in part if row.input is not None]
                results = self._client.classify(self._ref, inputs, **self._wanted)
            except (InvalidInput, TooLarge, AnswerNotFinite) as error:
                refused = _first_refused(error.detail)
                if len(part) > 1 and refused != 0:
                    # The error may not name the input.
                    good = refused if refused is not None and refused < len(part) else len(part) // 2
                    waiting += [part[good:], part[:good]]
                    continue
                says_where = refused is not None or isinstance(error, InvalidInput)
                error.detail = _located(error.detail if says_where else f"input 0: {error.detail}", part)
                # If all of the first request fails and no input is named, the request's options are wrong.
                options = refused is None and self._wanted and not self._answered and not any(waiting)
                if not self._go_on or options:
                    raise
                waiting.append(part[1:])
                yield error.detail
                continue
            # Pin the version: the whole input gets one version, even if the alias moves meanwhile.
            self._ref, self._answered = f"{results[0].task}@{results[0].version}", True
            yield from results


def _windows(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows of one request each; larger ones would delay the first results.

    The rows before one that cannot be read come before its error.
    """
    window, inputs = list[Row](), 0
    try:
        for row in rows:
            window.append(row)
            inputs += not row.fault
            if inputs == MAX_ITEMS or len(window) == _MOST_ROWS:
                yield window
                window, inputs = [], 0
    except OneBertError:
        if window:
            yield window
        raise
    if window:
        yield window


def _first_refused(detail: str) -> int | None:
    """The index in its request of the first input that the error names; None if it names none."""
    found = _INPUT.search(detail)
    return int(found[1]) if found else None


def _located(detail: str, rows: Sequence[Row]) -> str:
    """Replaces `input 3` in the client's error by the input's line, row or argument number."""

    def named(found: re.Match[str]) -> str:
        return rows[int(found[1])].where if int(found[1]) < len(rows) else found[0]

    return _INPUT.sub(named, detail)
