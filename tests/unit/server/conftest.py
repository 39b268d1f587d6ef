"""The tiny base, and a running engine with tasks on it, for the tests of answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bases import loaded
from onebert_encoder.base.base import Base
from parts import Parts


@pytest.fixture(scope="module")
def base() -> Base:
    return loaded()


@pytest.fixture(params=[False, True], ids=["one process", "front end"])
def parts(base: Base, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Parts]:
    with Parts(base, str(tmp_path / "engine"), request.param) as made:
        yield made
