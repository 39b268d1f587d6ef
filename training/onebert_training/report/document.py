"""Every report page: a document that loads nothing, from the templates beside this file; metrics and dots in it."""

import re
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined
from markupsafe import Markup

from onebert_training.tasks.metrics import LOWER_IS_BETTER

LABEL = 40  # characters of a name in a picture


def provenance() -> dict[str, str]:
    """Time, command and version, for reproduction."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["onebert", *sys.argv[1:]]),
        "onebert": version("onebert"),
    }


def rendered(template: str, title: str, **values: Any) -> str:
    """One HTML page, by a template that extends `document.html`."""
    return _environment().get_template(template).render(title=title, style=Markup(style()), **values)  # noqa: S704


@cache
def _environment() -> Environment:
    templates = Environment(autoescape=True, finalize=_escaped, undefined=StrictUndefined, loader=_Templates())
    templates.globals |= {"format_metric": format_metric, "unit": unit}
    templates.filters["thousands"] = "{:,}".format
    return templates


class _Templates(BaseLoader):
    """Templates whose lines are joined: with nothing between two tags, with a space between words."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        path = Path(__file__).parent / "templates" / template
        lines = path.read_text(encoding="utf-8").strip()
        return re.sub(r"\s*\n\s*", " ", re.sub(r"(?<=[>}])\s*\n\s*(?=[<{])", "", lines)), str(path), lambda: True


def _escaped(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(escape(str(value)))  # noqa: S704 - it is escaped


@cache
def style() -> str:
    """The style sheet of every page."""
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def short(text: str) -> str:
    """A name, shortened to `LABEL` characters."""
    text = " ".join(text.split())
    return text if len(text) <= LABEL else f"{text[: LABEL - 13]}…{text[-12:]}"


def format_metric(metric: str, value: float | None) -> str:
    """A metric for display: per cent with one decimal, or the number itself for errors, which have the data's unit."""
    if value is None:
        return "–"
    return f"{value:.4g}" if metric in LOWER_IS_BETTER else f"{100 * value:.1f}"


def unit(metric: str) -> str:
    """A metric with its unit: per cent, except for errors."""
    return metric if metric in LOWER_IS_BETTER else f"{metric}, %"


@dataclass(frozen=True)
class Scale:
    """The axis shared by the dots of a table; `low` is below `high`."""

    low: float
    high: float

    def place(self, value: float) -> str:
        """The position of a value, in per cent of the width."""
        inside = min(max(value, self.low), self.high)
        return f"{100 * (inside - self.low) / (self.high - self.low):.2f}%"

    def dot(
        self, value: float | None, low: float | None, high: float | None, mark: float | None = None, kind: str = "own"
    ) -> Markup:
        """A cell with a dot, its interval, and a line at the reference `mark`; hidden from screen readers."""
        lines = '<line class="grid" x1="0" x2="100%" y1="9" y2="9"/>'
        if mark is not None:
            lines += f'<line class="axis" x1="{self.place(mark)}" x2="{self.place(mark)}" y1="0" y2="18"/>'
        if low is not None and high is not None:
            lines += f'<line class="whisker" x1="{self.place(low)}" x2="{self.place(high)}" y1="9" y2="9"/>'
        if value is not None:
            lines += f'<circle class="mark" cx="{self.place(value)}" cy="9" r="4.5"/>'
        cell = f'<td class="dots {kind}"><svg height="18" aria-hidden="true">{lines}</svg></td>'
        return Markup(cell)  # noqa: S704 - numbers alone


def scale_of(values: Iterable[float | None], share: bool) -> Scale:
    """An axis with margins for the values; shares stay within 0 and 1."""
    numbers = [value for value in values if value is not None] or [0.0]
    low, high = min(numbers), max(numbers)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    low, high = low - room, high + room
    return Scale(max(0.0, low), min(1.0, high)) if share and min(numbers) >= 0 else Scale(low, high)
