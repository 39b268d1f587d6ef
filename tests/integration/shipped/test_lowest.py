"""The lowest version of each dependency: store, server and training's statistics pass their tests with these."""

import subprocess
from pathlib import Path

import pytest


# It installs an environment and runs a thousand tests in it, beside others.
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_lower_bounds_of_what_is_depended_on_hold():
    root = Path(__file__).parents[3]
    done = subprocess.run(["make", "test-lowest"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
