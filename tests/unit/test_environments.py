"""Environments for other people's programs: made once by however many ask, whole or made again, apart from ours."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import environments

pytestmark = pytest.mark.nightly("programs")

MAKE = """
import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])
import environments
print(environments.python_environment("none", Path(sys.argv[2])).folder)
"""


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty place for environments, and a folder that asks for one without packages."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environments, "KEPT", tmp_path / "cache/onebert-tests")
    (tmp_path / "none.txt").write_text("# no packages\n")
    (tmp_path / "bare").mkdir()
    package = {"name": "bare", "version": "1.0.0"}
    (tmp_path / "bare/package.json").write_text(json.dumps(package))
    (tmp_path / "bare/package-lock.json").write_text(
        json.dumps(package | {"lockfileVersion": 3, "packages": {"": package}})
    )
    return tmp_path


def test_several_processes_make_it_once(kept):
    def make(_):
        command = [sys.executable, "-c", MAKE, Path(environments.__file__).parent, kept]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout.strip()

    with ThreadPoolExecutor(3) as pool:
        places = set(pool.map(make, range(3)))
    (place,) = places
    stamp = (Path(place) / "installed").stat().st_mtime_ns
    assert make(0) == place
    assert (Path(place) / "installed").stat().st_mtime_ns == stamp


def test_what_was_left_half_made_is_made_again_and_runs_apart(kept):
    made = environments.python_environment("none", kept)
    (made.folder / "installed").unlink()
    (made.folder / "bin/python").unlink()
    environments.python_environment.cache_clear()
    again = environments.python_environment("none", kept)
    assert again.folder == made.folder
    assert again.run("echo.py", "http://here", 3, GIVEN="word") == {
        "arguments": ["http://here", "3"],
        "found": {"onebert_server": False, "onebert_store": False, "pip": True},
        "given": "word",
        "prefix": str(again.folder),
    }


def test_other_requirements_are_another_environment(kept):
    first = environments.python_environment("none", kept)
    (kept / "none.txt").write_text("# still none\n")
    environments.python_environment.cache_clear()
    assert environments.python_environment("none", kept).folder != first.folder


def test_what_cannot_be_had_fails_with_the_installers_words(kept):
    (kept / "none.txt").write_text("./there-is-no-such-folder\n")
    with pytest.raises(AssertionError, match="there-is-no-such-folder"):
        environments.python_environment("none", kept)
    assert not list(environments.KEPT.glob("*/installed"))


def test_a_script_of_node_runs_in_its_folder(kept):
    made = environments.node_environment("bare", kept)
    assert made.run("echo.mjs", "http://here", GIVEN="word") == {"arguments": ["http://here"], "given": "word"}
