"""The style that pictures of measurements share, and colors that color-blind people can tell apart."""

from typing import Any

# Okabe and Ito's colors without black, in which medians are drawn, and without yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.dpi": 130,
    "text.parse_math": False,  # a `$` in a name is a dollar
}
