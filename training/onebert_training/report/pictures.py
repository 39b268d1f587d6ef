"""The style that all pictures share, colors that color-blind people can tell apart, and saving."""

import io
import re
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

# Okabe and Ito's colors without black, in which medians are drawn, and without yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = "osD^vPX"
STYLES = ("-", "--", ":", "-.")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.dpi": 130,
    "text.parse_math": False,  # a `$` in a name is a dollar
}
LABEL = 40  # characters of a name that are shown


@dataclass(frozen=True)
class Picture:
    """A figure as PNG, with its file's name, title and caption."""

    name: str
    title: str
    caption: str
    png: bytes


def short(text: str) -> str:
    """A name, cut to `LABEL` characters."""
    text = " ".join(text.split())
    return text if len(text) <= LABEL else f"{text[: LABEL - 13]}…{text[-12:]}"


def save(figure: Figure, kind: str, base: str, title: str, caption: str) -> Picture:
    """Renders a figure.

    Args:
        figure: the finished figure.
        kind: what the figure shows, for the file's name.
        base: the base's name, for the file's name.
        title: title above the picture on the page.
        caption: caption below the picture.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{base.rsplit('/', 1)[-1]}-{kind}").strip("-").lower()
    return Picture(name[:100], title, caption, buffer.getvalue())
