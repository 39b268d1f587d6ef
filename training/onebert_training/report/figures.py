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
    """Every figure that the records hold data for."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A name may be in a script that the font lacks: the picture then shows boxes, and the page the name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return [picture for kind in FIGURES for picture in kind(results)]
