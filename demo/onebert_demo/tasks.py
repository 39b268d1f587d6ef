"""The demo's three tasks: their data and training methods."""

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
        return DATA / self.name

    @cached_property
    def test(self) -> list[Example]:
        labels = json.loads((self.folder / "labels.json").read_text(encoding="utf-8"))["labels"]
        with (self.folder / "test.csv").open(encoding="utf-8", newline="") as file:
            return [Example(_text(row), labels[int(row["label"])]) for row in csv.DictReader(file)]


# Heads train in a second; one method takes steps, to show the training of a delta in the encoder.
ROUTING = Task("support-routing", "head")
TONE = Task("review-tone", "layernorm")
SAME = Task("same-question", "head")
TASKS = (ROUTING, TONE, SAME)


def _text(row: dict[str, str]) -> Input:
    return (row["text"], row["text_pair"]) if "text_pair" in row else row["text"]
