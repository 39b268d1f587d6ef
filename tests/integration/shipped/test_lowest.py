"""The lowest version of each dependency that pyproject.toml allows: store and server pass their tests with these."""

import subprocess
from pathlib import Path

import pytest


@pytest.mark.nightly("bounds")
def test_the_lower_bounds_of_what_is_depended_on_hold():
    done = subprocess.run(["make", "test-lowest"], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
