"""A picture: panels side by side on the page, and together in an SVG file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from onebert_training.report.document import style
from onebert_training.report.plots import Panel

ACROSS = 3  # panels per row in a file
_GAP = 24


@dataclass(frozen=True)
class Picture:
    """Panels with their file's name, title and caption."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]

    def file(self) -> str:
        """The whole picture as an SVG file with the pages' style."""
        across = min(ACROSS, len(self.panels))
        width = max(panel.width for panel in self.panels)
        rows = [self.panels[i * across : (i + 1) * across] for i in range(ceil(len(self.panels) / across))]
        parts: list[str] = []
        y: float = _GAP
        for row in rows:
            for i, panel in enumerate(row):
                place = f'x="{_GAP + i * (width + _GAP):g}" y="{y:g}" width="{panel.width:g}" height="{panel.height:g}"'
                parts.append(panel.svg(place))
            y += max(panel.height for panel in row) + _GAP
        total = _GAP + across * (width + _GAP)
        ground = '<rect width="100%" height="100%" style="fill: var(--ground)"/>'
        body = f"<style>{style()}</style>{ground}{''.join(parts)}"
        return Panel(total, y, self.title, body).svg(f'width="{total:g}" height="{y:g}"') + "\n"


def make(kind: str, base: str, title: str, caption: str, panels: Sequence[Panel]) -> Picture:
    """A picture of at least one panel; `kind` and `base` make up the file's name."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{base.rsplit('/', 1)[-1]}-{kind}").strip("-").lower()
    return Picture(name[:100], title, caption, tuple(panels))
