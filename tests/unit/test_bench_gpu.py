"""`make bench-gpu` tried on a CPU: tiny shapes, whose numbers mean nothing, but every section runs and is written."""

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from broken_sections import broken
from onebert_bench.gpu.conduct import conduct
from onebert_bench.gpu.made import Made
from onebert_bench.gpu.run import Run
from onebert_bench.report import Goal, Section

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
SECTIONS = ("exactness", "latency", "throughput", "mixed", "training", "served", "invariance", "profile", "kernels")


def measured(out: Path, *options: str) -> tuple[dict, str]:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--no-tests", "--out", str(out)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    (found,), (page,) = out.glob("*.json"), out.glob("*.md")
    return json.loads(found.read_text()), page.read_text()


@pytest.mark.nightly("benches")
def test_every_section_runs_and_is_written(tmp_path: Path) -> None:
    found, page = measured(tmp_path)
    assert found["failed"] == {}
    assert tuple(found["sections"]) == SECTIONS
    assert {"torch", "transformers", "Python"} <= set(found["machine"]["versions"])
    for section in found["sections"].values():
        assert section["rows"]
        assert all(len(row) == len(section["header"]) for row in section["rows"])
        assert f"## {section['title']}\n" in page
    errors = {row[0]: row[2] for row in found["sections"]["exactness"]["rows"]}
    assert errors["float32"] < 1e-4
    assert errors["bfloat16"] < 0.1


@pytest.mark.nightly("benches")
def test_a_section_that_fails_hangs_or_dies_leaves_the_others_their_results(
    tmp_path: Path,
) -> None:
    reported: dict[str, Section | str] = {}
    names = ["raises", "one", "hangs", "two", "dies", "three"]
    conduct(names, Made(tmp_path, "cpu", True), 60.0, time.monotonic() + 600, reported.__setitem__, broken)
    failed = {name: result for name, result in reported.items() if isinstance(result, str)}
    assert failed == {
        "raises": "RuntimeError: CUDA error: an illegal memory access was encountered",
        "hangs": "not done after 60 s",
        "dies": "its process ended with exit code 7",
    }
    processes = {name: result.rows[0][0] for name, result in reported.items() if isinstance(result, Section)}
    assert list(reported) == names
    assert len(set(processes.values())) == 3


def test_a_checkout_without_an_installation_is_completed(tmp_path: Path) -> None:
    """As on a machine with PyTorch and without OneBERT: the components, their commands, and a wheel are found."""
    wheel = tmp_path / "wheels" / "brought_along-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("brought_along.py", "VALUE = 3")
        packed.writestr("brought_along-1.0.dist-info/METADATA", "Name: brought-along\nVersion: 1.0\n")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", COMPLETED, str(SCRIPT.parents[1]), str(wheel.parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["3", "True", "onebert_server.cli.serve:serve", "True"]


COMPLETED = """
import importlib.metadata, importlib.util, os, subprocess, sys
from pathlib import Path
root, wheels = map(Path, sys.argv[1:])
sys.path.append(str(root / "benchmarks"))
from onebert_bench.checkout import complete_path
complete_path(root, wheels)
import brought_along
print(brought_along.VALUE)
print(importlib.util.find_spec("onebert_encoder") is not None)
(serve,) = (one for one in importlib.metadata.entry_points(group="onebert.commands") if one.name == "serve")
print(serve.value)
child = "import brought_along, importlib.util; print(importlib.util.find_spec('onebert_server') is not None)"
print(subprocess.run([sys.executable, "-S", "-c", child], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.nightly("benches")
def test_what_no_time_was_left_for_is_said(tmp_path: Path) -> None:
    found, page = measured(tmp_path, "--seconds", "0")
    assert found["sections"] == {}
    assert found["failed"] == dict.fromkeys(SECTIONS, "no time was left")
    assert "| latency | no time was left |" in page


def test_goals_are_reached_from_their_own_side(tmp_path: Path) -> None:
    goals = [Goal("rate", "int8", "it", found, 0.55, at_least=True) for found in (0.5, 0.6)]
    goals += [Goal("ms", "int8", "it", found, 0.6) for found in (0.5, 0.7)]
    assert [goal.is_reached for goal in goals] == [False, True, True, False]
    machine = {
        "name": "it",
        "device": "it",
        "cores": 1,
        "processor": "it",
        "date": "today",
        "versions": {},
        "weights": "",
    }
    run = Run(machine, sections={"one": Section("One", "What.", ("a", "b"), [["x", None]], goals)})
    page = run.write(tmp_path).read_text()
    assert "| ms | int8 | it | 0.7 | ≤ 0.6 | no |" in page
    assert "| x | – |" in page
    assert "Tests on the device: not run." in page
