"""Somebody's text in Markdown: shown as it is, whatever it looks like."""

import re
from collections.abc import Iterable, Sequence

from onebert_store.file.strict_json import shown

MOST = 300  # characters of one text

# What begins markup or an entity, ends a cell, or makes a link of an address.
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~&!$@:^]|(?<=www)\.", re.IGNORECASE)


def plain(text: str) -> str:
    """The text as Markdown that says the same: for a heading, a cell of a table, or behind other words of a line."""
    return _MARKUP.sub(lambda found: "\\" + found[0], " ".join(shown(text, MOST).split()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
