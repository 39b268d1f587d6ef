"""The three tasks of the demo: their data, and how each is trained."""

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onebert_server.client import Input

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Example:
    """A text or a pair of texts, and the label that a person gave it."""

    text: Input
    label: str


@dataclass(frozen=True)
class Task:
    """One task and the method by which it is trained."""

    name: str
    method: str

    @property
    def folder(self) -> Path:
        """Where train.csv, validation.csv, test.csv and labels.json are."""
        return DATA / self.name

    @cached_property
    def test(self) -> list[Example]:
        """The test split."""
        labels = json.loads((self.folder / "labels.json").read_text(encoding="utf-8"))["labels"]
        with (self.folder / "test.csv").open(encoding="utf-8", newline="") as file:
            return [Example(_text(row), labels[int(row["label"])]) for row in csv.DictReader(file)]


# Heads are found in a second; one method takes steps, which shows how a delta of the encoder is trained.
ROUTING = Task("support-routing", "head")
TONE = Task("review-tone", "layernorm")
SAME = Task("same-question", "head")
TASKS = (ROUTING, TONE, SAME)


def _text(row: dict[str, str]) -> Input:
    return (row["text"], row["text_pair"]) if "text_pair" in row else row["text"]
