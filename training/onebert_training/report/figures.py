"""All figures of a report."""

from onebert_training.report.changes import draw_changes
from onebert_training.report.curves import draw_curves
from onebert_training.report.pictures import Picture
from onebert_training.report.scores import draw_gaps, draw_scores
from onebert_training.report.sizes import draw_sizes
from onebert_training.report.tables import Results

FIGURES = (draw_scores, draw_gaps, draw_sizes, draw_curves, draw_changes)


def draw(results: Results) -> list[Picture]:
    """Draws every figure for which the records have data."""
    return [picture for kind in FIGURES for picture in kind(results)]
