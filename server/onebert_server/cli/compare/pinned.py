"""The answers that `onebert check-fleet` keeps in a file, and how later answers are compared with them."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onebert_server.cli.compare.differences import said
from onebert_server.cli.compare.reading import TaskRows
from onebert_server.client import Input, TaskResult
from onebert_store.errors import InvalidData
from onebert_store.file import strict_json
from onebert_store.file.strict_json import shown

# How far a score may be from the kept one by dtype, relative to scores over 1. A probability moves by at most half of
# the logits' largest deviation: decision 4 measured up to 0.073 in bfloat16 and 0.42 in int8. float32 sums in another
# order are off by about 0.00001.
TOLERANCE: Mapping[str, float] = {"float32": 1e-4, "bfloat16": 0.04, "int8": 0.21}
# Digits of a score in the file; far below the smallest tolerance.
_DIGITS = 7


class ReplayedRow(BaseModel):
    """One row: the SHA-256 of its input, its answer, and the answer's scores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: str
    answer: str
    scores: list[float]


class Pinned(BaseModel):
    """The answers of one version to the rows of its task, and what it was computed in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int
    digest: str
    dtype: str
    rows: list[ReplayedRow]


class Answers(BaseModel):
    """The file: its format, and the answers by task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = Field(default=1, ge=1, le=1)
    tasks: dict[str, Pinned]


def read_answers(file: Path) -> Answers:
    """Reads the file; raises InvalidData for one that `onebert check-fleet` has not written."""
    try:
        return Answers.model_validate(strict_json.parse(file.read_bytes()))
    except (ValidationError, ValueError):
        raise InvalidData(f"{file.name} is no file of answers; name the file that onebert check-fleet wrote") from None


def written(answers: Answers) -> bytes:
    """The content of the file: the same answers give the same bytes."""
    return f"{strict_json.encode(answers.model_dump())}\n".encode()


def replayed(one: TaskRows, results: Sequence[TaskResult], dtype: str) -> Pinned:
    """The answers of a task's one version; raises the error of the first row without an answer."""
    [facts], [task_type] = one.versions, one.task_types
    rows = [
        # The number of a regression is compared as a score: rounded to an answer it may change with its last bit.
        ReplayedRow(
            input=_digest(row.input),
            answer="" if task_type == "regression" else said(row, result, task_type),
            scores=_scores(result),
        )
        for row, result in zip(one.rows, results, strict=True)
    ]
    return Pinned(version=facts.version, digest=facts.digest, dtype=dtype, rows=rows)


def compare(kept: Pinned, now: Pinned, one: TaskRows) -> dict[str, Any]:
    """Compares two sets of answers to the rows of a task; returns a JSON value.

    `red`: an answer differs, or a score is off by more than the `TOLERANCE` of the coarser dtype; `differ`, the number
    of other answers; `largest`, the largest difference of the scores of equal answers; `first`, the first red row with
    both answers. Only `changed`, a sentence, if the version or the rows are not the same.
    """
    if kept.digest != now.digest:
        return {"changed": f"version {kept.version} was live, now it is version {now.version}"}
    if [row.input for row in kept.rows] != [row.input for row in now.rows]:
        return {"changed": f"its rows have changed: {len(kept.rows)} were answered, now there are {len(now.rows)}"}
    tolerance = max(TOLERANCE.get(each.dtype, 0.0) for each in (kept, now))
    pairs = list(zip(kept.rows, now.rows, strict=True))
    off = [_off(before, after) for before, after in pairs]
    red = [place for place, apart in enumerate(off) if apart is None or apart > tolerance]
    first = [f"{one.rows[at].where}: {_shown(pairs[at][0])} → {_shown(pairs[at][1])}" for at in red[:1]]
    return {
        "red": bool(red),
        "rows": len(off),
        "differ": off.count(None),
        "largest": max((apart for apart in off if apart is not None), default=0.0),
        "first": "".join(first),
    }


def _off(before: ReplayedRow, after: ReplayedRow) -> float | None:
    """The largest difference of the scores, relative to scores over 1; None for another answer."""
    if before.answer != after.answer:
        return None
    scores = zip(before.scores, after.scores, strict=True)
    return max((abs(x - y) / max(1.0, abs(x)) for x, y in scores), default=0.0)


def _shown(row: ReplayedRow) -> str:
    return shown(" ".join([row.answer, *(f"{score:.4f}" for score in row.scores[:1])]).strip())


def _digest(text: Input) -> str:
    return hashlib.sha256(strict_json.encode(text).encode()).hexdigest()


def _scores(result: TaskResult) -> list[float]:
    """The score of the answer, or of each span that was found."""
    spans = next((found for found in (result.entities, result.words, result.answers) if found is not None), ())
    scores = [one.score for one in spans] if result.score is None else [result.score]
    return [round(score, _DIGITS) for score in scores]
