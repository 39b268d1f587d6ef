"""Every extension is optional: types and quick tests pass in a copy of the tree without it."""

import subprocess
import sys
from pathlib import Path

import pytest

from onebert_server.installed import INSTALLED

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", INSTALLED)
def test_types_and_quick_tests_pass_without_an_extension(name):
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "without.py", name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
