"""Building blocks of every report page: a document that loads nothing, its style, tables, dots in cells."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.metadata import version
from pathlib import Path

from onebert_training.tasks.metrics import LOWER_IS_BETTER

# Forbids scripts and loading, so that text from foreign data is harmless.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
LABEL = 40  # characters of a name in a picture


def made() -> dict[str, str]:
    """Time, command and version, for reproduction."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["onebert", *sys.argv[1:]]),
        "onebert": version("onebert"),
    }


def provenance(facts: Mapping[str, str], more: Iterable[tuple[str, str]], below: str = "") -> str:
    """Everything needed to reproduce a page: the entries of `made`, and names with HTML."""
    command = f"<code>{escape(facts['command'])}</code>"
    named = [("Date", escape(facts["at"])), ("Command", command), ("OneBERT", escape(facts["onebert"])), *more]
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in named)
    return f"<section><h2>How this was made</h2><dl>{listed}</dl>{below}</section>"


def document(title: str, body: str) -> str:
    """One HTML page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{style()}</style></head><body><main>{body}</main></body></html>\n"
    )


@cache
def style() -> str:
    """The style sheet of every page."""
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def short(text: str) -> str:
    """A name, shortened to `LABEL` characters."""
    text = " ".join(text.split())
    return text if len(text) <= LABEL else f"{text[: LABEL - 13]}…{text[-12:]}"


def said(metric: str, value: float | None) -> str:
    """A metric for display: per cent with one decimal, or the number itself for errors, which have the data's unit."""
    if value is None:
        return "–"
    return f"{value:.4g}" if metric in LOWER_IS_BETTER else f"{100 * value:.1f}"


def unit(metric: str) -> str:
    """A metric with its unit: per cent, except for errors."""
    return metric if metric in LOWER_IS_BETTER else f"{metric}, %"


def td(text: str, kind: str = "") -> str:
    """A cell."""
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def th(name: str, kind: str = "", under: str = "") -> str:
    """A row's header cell, with an optional smaller line under the name."""
    named = f' class="{kind}"' if kind else ""
    more = f'<span class="spread">{escape(under)}</span>' if under else ""
    return f'<th scope="row"{named}>{escape(name)}{more}</th>'


def table(head: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], name: str = "") -> str:
    """A table from cells made by `th`, `td` and `Scale.dot`.

    `head` has title and subtitle of each column (both may be empty). A table with a `name` scrolls if it is too wide.
    """
    titles = "".join(
        f'<th scope="col">{escape(title)}{f"<br><small>{escape(sub)}</small>" if sub else ""}</th>'
        if title
        else "<td></td>"
        for title, sub in head
    )
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    body = f"<thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
    return scrolling(f'<table class="wide">{body}', name) if name else f"<table>{body}"


def scrolling(inside: str, name: str) -> str:
    """Content that may be wider than the page, scrollable by keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{inside}</div>'


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
    ) -> str:
        """A cell with a dot, its interval, and a line at the reference `mark`; hidden from screen readers."""
        lines = '<line class="grid" x1="0" x2="100%" y1="9" y2="9"/>'
        if mark is not None:
            lines += f'<line class="axis" x1="{self.place(mark)}" x2="{self.place(mark)}" y1="0" y2="18"/>'
        if low is not None and high is not None:
            lines += f'<line class="whisker" x1="{self.place(low)}" x2="{self.place(high)}" y1="9" y2="9"/>'
        if value is not None:
            lines += f'<circle class="mark" cx="{self.place(value)}" cy="9" r="4.5"/>'
        return f'<td class="dots {kind}"><svg height="18" aria-hidden="true">{lines}</svg></td>'


def scale_of(values: Iterable[float | None], share: bool) -> Scale:
    """An axis with margins for the values; shares stay within 0 and 1."""
    found = [value for value in values if value is not None] or [0.0]
    low, high = min(found), max(found)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    low, high = low - room, high + room
    return Scale(max(0.0, low), min(1.0, high)) if share and min(found) >= 0 else Scale(low, high)
