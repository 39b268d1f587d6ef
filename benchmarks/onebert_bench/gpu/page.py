"""Writes a run on a GPU as JSON and as a page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onebert_bench.gpu.section import Goal, Section
from onebert_bench.pages import markdown_table
from onebert_bench.suite.peers.workers import Json


@dataclass
class Run:
    """The results so far.

    Attributes:
        machine: the machine and its software.
        tests: pytest's last line for the tests marked `gpu`; None if they were not run.
        sections: finished sections by name.
        failed: the error of each section that failed, by name.
    """

    machine: Json
    tests: str | None = None
    sections: dict[str, Section] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def goals(self) -> list[Goal]:
        """The goals of all sections."""
        return [goal for section in self.sections.values() for goal in section.goals]

    def write(self, folder: Path) -> Path:
        """Writes `<machine>.json` and `<machine>.md`; returns the latter."""
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / f"{self.machine['name']}.md"
        page.write_text(self._page(), encoding="utf-8")
        page.with_suffix(".json").write_text(json.dumps(self._json(), indent=1) + "\n", encoding="utf-8")
        return page

    def _json(self) -> Mapping[str, object]:
        sections = {name: section.as_json() for name, section in self.sections.items()}
        return {"machine": self.machine, "tests": self.tests, "sections": sections, "failed": self.failed}

    def _page(self) -> str:
        at = self.machine
        versions = ", ".join(f"{name} {version}" for name, version in at["versions"].items())
        parts = [
            f"# {at['device']}, {at['cores']} cores of {at['processor']}",
            f"Measured on {at['date']} with `make bench-gpu`: {versions}. {at['weights']} Compare within a table only.",
            f"Tests on the device: {self.tests or 'not run'}.",
        ]
        if self.goals:
            header = ("goal", "found", "wanted", "reached")
            parts.append(f"## Goals\n\n{markdown_table(header, [goal.line() for goal in self.goals])}")
        parts += [section.page() for section in self.sections.values()]
        if self.failed:
            parts.append(f"## Not measured\n\n{markdown_table(('section', 'why'), _pairs(self.failed))}")
        return "\n\n".join(part for part in parts if part) + "\n"


def _pairs(found: Mapping[str, str]) -> Sequence[Sequence[str]]:
    return list(found.items())
