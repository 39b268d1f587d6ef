"""The results of a run as a JSON file with every repetition."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from onebert_bench.report import Json, Section
from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.over_http import HttpOutcome
from onebert_bench.suite.scenes import Scene


@dataclass
class Results:
    """The results so far.

    Attributes:
        machine: the machine, and the settings of the run.
        tokens: tokens in the batch of each scene.
        versions: version of every package in every environment.
    """

    machine: Json
    real_texts: bool
    scenes: list[tuple[Scene, list[Outcome]]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    http: list[HttpOutcome] = field(default_factory=list)
    parts: dict[str, Section] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes `<machine>.json`."""
        scenes = [
            {name: getattr(scene, name) for name in ("kind", "base", "mix", "texts")}
            | {"tokens": self.tokens[scene.name], "cases": [outcome.as_json() for outcome in outcomes]}
            for scene, outcomes in self.scenes
        ]
        record = {
            "machine": self.machine,
            "real_texts": self.real_texts,
            "scenes": scenes,
            "http": [outcome.as_json() for outcome in self.http],
            **{name: part.as_json() for name, part in self.parts.items()},
            "versions": self.versions,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.machine['name']}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
