"""Every script of the benchmarks can be imported, and reads the options that its first lines show."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from onebert_bench.script import options

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = [path for room in (".", "serving", "training") for path in sorted((FOLDER / room).glob("*.py"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_can_be_imported_and_knows_the_options_that_it_shows(script, monkeypatch):
    monkeypatch.syspath_prepend(str(script.parent))
    loaded = runpy.run_path(str(script))
    shown = set(re.findall(r"(?<![\w-])--([a-z-]+)", loaded["__doc__"]))
    shown -= {"option"} | {name for name in shown if "onebert sweep" in loaded["__doc__"]}
    source = script.read_text(encoding="utf-8")
    assert {name for name in shown if f"{name.replace('-', '_')}=" not in source} == set()


def test_options_are_made_of_their_defaults(monkeypatch):
    made = {"data": Path, "base": None, "seconds": 2.0, "clients": [1, 64], "write": False, "out": Path("results")}
    monkeypatch.setattr(sys, "argv", ["script", "--data", "here", "--clients", "2", "3", "--clients", "4", "--write"])
    asked = options("About.", **made)
    assert vars(asked) == made | {"data": Path("here"), "clients": [2, 3, 4], "write": True}
    monkeypatch.setattr(sys, "argv", ["script", "--data", "here", "--seconds", "1"])
    assert vars(options("About.", **made)) == made | {"data": Path("here"), "seconds": 1.0}
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=False)
    assert "the following arguments are required: --data" in done.stderr


MISSING = "from pathlib import Path; from onebert_bench.script import options; options('About.', data=Path)"
