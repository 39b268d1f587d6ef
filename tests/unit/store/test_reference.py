"""A manifest's reference: bins for any scores, what is refused, and its size in a file."""

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidManifest
from onebert_store.file.format import dumps, loads
from onebert_store.file.manifest import FORMAT, parse_manifest
from onebert_store.file.reference import MAX_BINS, MIN_BIN_ROWS, bin_edges, count_bins
from tiny_delta import make_delta, manifest_dict

COUNTS = {"split": "validation", "rows": 10, "labels": [4, 6], "abstained": 0, "edges": [0.5], "scores": [3, 7]}
FITS = COUNTS | {"confidence": 0.7}
RIGHT = {"answered": [[4, 1, 0], [0, 5, 0]], "scores": [[2, 3], [1, 4]]}


@given(st.lists(st.sampled_from([0.5, 0.7, 0.9, 1.0]) | st.floats(0, 1), max_size=300))
def test_bins_are_few_filled_and_never_part_equal_scores(scores):
    scores = np.array(scores, dtype=float)
    edges = bin_edges(scores)
    bins = count_bins(edges, scores)
    counts = np.bincount(bins, minlength=len(edges) + 1)
    assert len(counts) <= MAX_BINS
    assert not edges or counts.min() >= max(MIN_BIN_ROWS, len(scores) // MAX_BINS)
    assert not set(edges) & set(scores.tolist())
    assert bins.tolist() == [bisect_left(edges, score) for score in scores.tolist()]


def test_a_reference_makes_format_3_and_comes_back_whole():
    delta = make_delta(format=FORMAT, reference=FITS | {"right": RIGHT})
    data = dumps(delta)
    assert loads(data).manifest.reference == delta.manifest.reference
    assert dumps(loads(data)) == data
    plain = make_delta()
    assert (plain.manifest.format, plain.digest == delta.digest) == (1, False)
    with pytest.raises(InvalidManifest, match="format"):
        parse_manifest(manifest_dict(format=1, reference=FITS))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"labels": [4, 11]}, "more answers than there are rows"),
        ({"labels": [4]}, "one count for each label"),
        ({"labels": [4, -1]}, "greater than or equal to 0"),
        ({"edges": [0.5, 0.5], "scores": [1, 2, 7]}, "not increasing"),
        ({"edges": [1.5]}, "less than or equal to 1"),
        ({"scores": [3, 6]}, "do not add up to the rows"),
        ({"scores": [10]}, "one count more than edges"),
        ({"confidence": None}, "none without a confidence"),
        ({"edges": [0.01 * number for number in range(10)]}, "at most 9"),
        ({"right": RIGHT | {"answered": [[4, -1, 0]]}}, "greater than or equal to 0"),
        ({"right": {"more": [[1]]}}, "'answered' or 'scores'"),
        ({"split": ""}, "at least 1 character"),
        ({"rows": True}, "valid integer"),
        ({"more": 1}, "not permitted"),
    ],
)
def test_a_reference_that_contradicts_itself_is_refused(wrong, why):
    with pytest.raises(InvalidManifest, match=why):
        parse_manifest(manifest_dict(format=FORMAT, reference=FITS | wrong))


def test_only_tasks_whose_answers_are_labels_have_one():
    of_numbers = {"task_type": "regression", "labels": ["a", "b"]}
    with pytest.raises(InvalidManifest, match="a regression task has none"):
        parse_manifest(manifest_dict(format=FORMAT, reference=FITS, **of_numbers))
