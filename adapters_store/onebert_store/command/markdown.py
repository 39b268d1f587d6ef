"""Escapes users' text for Markdown, so that it shows as written."""

import re
from collections.abc import Iterable, Sequence

from onebert_store.file.strict_json import shown

MOST = 300  # characters of one text

# Characters that begin markup or an entity, end a cell, or make an address a link.
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~&!$@:^]|(?<=www)\.", re.IGNORECASE)


def plain(text: str) -> str:
    """Escapes text for a heading, a table cell, or the middle of a line."""
    return _MARKUP.sub(lambda found: "\\" + found[0], " ".join(shown(text, MOST).split()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Makes a table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
