"""A run on a GPU as JSON and as a page."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from onebert_bench.report import Json, Section, markdown_table


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

    def write(self, folder: Path) -> Path:
        """Writes `<machine>.json` and `<machine>.md`; returns the latter."""
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / f"{self.machine['name']}.md"
        page.write_text(self._page(), encoding="utf-8")
        sections = {name: section.as_json() for name, section in self.sections.items()}
        results = {"machine": self.machine, "tests": self.tests, "sections": sections, "failed": self.failed}
        page.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        return page

    def _page(self) -> str:
        at = self.machine
        versions = ", ".join(f"{name} {version}" for name, version in at["versions"].items())
        parts = [
            f"# {at['device']}, {at['cores']} cores of {at['processor']}",
            f"Measured on {at['date']} with `make bench-gpu`: {versions}. {at['weights']} Compare within a table only.",
            f"Tests on the device: {self.tests or 'not run'}.",
            *(section.page() for section in self.sections.values()),
        ]
        if self.failed:
            parts.append(f"## Not measured\n\n{markdown_table(('section', 'why'), self.failed.items())}")
        return "\n\n".join(parts) + "\n"
