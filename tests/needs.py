"""The marker of a test in which one extension meets another."""

import pytest

from onebert_server.installed import INSTALLED


def needs(name):
    """Skips a test beside its own extension where the other one is not installed (`tests/without.py`)."""
    return pytest.mark.skipif(name not in INSTALLED, reason=f"the extension {name} is not installed")
