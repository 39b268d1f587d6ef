"""`make bench-gpu` tried on a CPU: tiny shapes, whose numbers mean nothing, but every section runs and is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onebert_bench.gpu.page import Run
from onebert_bench.gpu.section import Goal, Section

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
# Without those that train and serve, which other tests do.
SECTIONS = ("exactness", "throughput", "latency", "mixed", "waits", "kernels", "ceilings", "resident", "profile")


def measured(out: Path, *options: str) -> tuple[dict, str]:
    only = [option for name in SECTIONS for option in ("--only", name)]
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--no-tests", "--out", str(out)]
    subprocess.run([*command, *only, *options], check=True, capture_output=True)
    (found,), (page,) = out.glob("*.json"), out.glob("*.md")
    return json.loads(found.read_text()), page.read_text()


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_no_time_was_left_for_is_said(tmp_path: Path) -> None:
    found, page = measured(tmp_path, "--seconds", "0")
    assert found["sections"] == {}
    assert found["failed"] == dict.fromkeys(SECTIONS, "no time was left")
    assert "| latency | no time was left |" in page


def test_goals_are_reached_from_their_own_side(tmp_path: Path) -> None:
    goals = [Goal("rate", 0.5, 0.55, at_least=True), Goal("rate", 0.6, 0.55, at_least=True)]
    goals += [Goal("ms", 0.5, 0.6, at_least=False), Goal("ms", 0.7, 0.6, at_least=False)]
    assert [goal.is_reached for goal in goals] == [False, True, True, False]
    machine = {"name": "it", "device": "it", "cores": 1, "processor": "it", "date": "today", "versions": {}}
    run = Run(machine, sections={"one": Section("One", "What.", ("a", "b"), [["x", None]], goals)})
    page = run.write(tmp_path).read_text()
    assert "| ms | 0.7 | ≤ 0.6 | no |" in page
    assert "| x | – |" in page
    assert "Tests on the device: not run." in page
