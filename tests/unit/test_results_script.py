"""The script behind benchmarks/results/accuracy.md trains again what was trained with other arguments."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "training" / "results.py"


@pytest.mark.parametrize(
    ("stored", "believed"),
    [
        ({"arguments": ["--task", "trec6", "--epochs", "5"]}, True),
        ({"arguments": ["--task", "trec6", "--epochs", "4"]}, False),
        ({}, True),  # written before arguments were stored
        (None, False),
    ],
)
def test_a_record_counts_for_its_own_arguments(tmp_path, stored, believed):
    record = tmp_path / "trec6-bitfit.json"
    if stored is not None:
        record.write_text(json.dumps(stored | {"metric": "accuracy"}))
    finished = runpy.run_path(str(SCRIPT))["finished"](record, ["--task", "trec6", "--epochs", "5"])
    assert (finished is not None) == believed
