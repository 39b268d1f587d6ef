"""Every figure of a report."""

import warnings

import matplotlib as mpl

from onebert_training.report.bars import draw_gaps, draw_scores
from onebert_training.report.changes import draw_changes
from onebert_training.report.curves import draw_curves
from onebert_training.report.sizes import draw_sizes
from onebert_training.report.style import STYLE, Picture
from onebert_training.report.tables import Results

FIGURES = (draw_scores, draw_gaps, draw_sizes, draw_curves, draw_changes)


def draw(results: Results) -> list[Picture]:
    """Draws every figure for which the records have data."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # The font may lack the script of a name: the picture then shows boxes, but the page shows the name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return [picture for kind in FIGURES for picture in kind(results)]
