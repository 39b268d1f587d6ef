"""The tiny base, and a running engine with tasks on it, for the tests of answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bases import tiny_base
from onebert_encoder.base.base import Base, load_base
from parts import Parts


@pytest.fixture(scope="module")
def base() -> Base:
    return load_base(str(tiny_base()))


@pytest.fixture(params=[False, True], ids=["one process", "front end"])
def parts(base: Base, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Parts]:
    with Parts(base, str(tmp_path / "engine"), request.param) as made:
        yield made
