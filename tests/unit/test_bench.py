"""`onebert bench` measures whichever base it is given, and each script behind a figure can still be started."""

import json
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from bases import tiny_base
from onebert_bench.compute import measure_compute, measured_dtypes
from onebert_bench.suite.page import write_page
from onebert_bench.workload import TINY, base_folder
from onebert_store.command.process import ONEBERT

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = [path for folder in (".", "serving", "training") for path in sorted((BENCHMARKS / folder).glob("*.py"))]
COMPUTED = {"hf_ms", "one_ms", "swap_ms", "mixed_ms", "floor_ms", "tokens"}


def test_every_dtype_that_this_processor_multiplies_is_measured():
    """PyTorch refuses to pack a weight in bfloat16 on a processor without AVX-512."""
    for dtype in measured_dtypes("cpu"):
        times = measure_compute(str(tiny_base()), getattr(torch, dtype), "cpu", 3)
        assert times.keys() == COMPUTED
        assert min(times.values()) > 0


def test_the_page_of_all_machines_is_made_of_their_runs(tmp_path: Path):
    """Also of a run with peers that have left the tree since."""
    for run in (BENCHMARKS / "results").glob("*.json"):
        shutil.copy(run, tmp_path)
    page = write_page(tmp_path)
    assert page.read_text() == (BENCHMARKS / "results" / page.name).read_text()


@pytest.mark.slow
def test_the_command_prints_every_part_as_json(tmp_path: Path):
    # Of the real words that its texts are made of.
    base = base_folder(TINY, tmp_path)
    options = ["--base", str(base), "--repetitions", "3", "--seconds", "1", "--resident", "64", "--json"]
    done = subprocess.run([*ONEBERT, "bench", *options], check=True, capture_output=True, text=True)
    record = json.loads(done.stdout)
    dtypes = measured_dtypes("cpu")
    assert record.keys() == {*dtypes, "resident", "http"}
    assert all(record[dtype].keys() == COMPUTED for dtype in dtypes)
    assert record["resident"]["tasks"] == 64
    for clients in ("1", "64"):
        loads = record["http"][clients]
        assert loads["refused"] == 0
        assert loads["requests_per_second"] > 0
        assert loads["p50_ms"] <= loads["p99_ms"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_finds_what_it_imports(script: Path, monkeypatch: pytest.MonkeyPatch):
    """Types are not checked in scripts, and what they measure is renamed elsewhere."""
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script))
