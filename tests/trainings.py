"""Shared by the tests of training: short runs, one that is interrupted, and commands in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from bases import tiny_base
from onebert_encoder.base.base import Base
from onebert_training.data.dataset import Dataset
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import Progress, Report
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings


class InterruptedRunError(Exception):
    """Raised in the middle of a run."""


@contextmanager
def interrupted(ends: Callable[[Run, Progress], bool]) -> Iterator[Report]:
    """Gives a report that raises where `ends` says so, and catches that."""

    def report(run: Run, progress: Progress) -> None:
        if ends(run, progress):
            raise InterruptedRunError

    with pytest.raises(InterruptedRunError):
        yield report


def short_run(base: Base, data: Dataset, settings: Settings, kind: type[Run] = Run, **changes: Any) -> Run:
    settings = replace(settings, **changes)
    return kind(TaskInputs(base, data, settings.max_length), settings, "tone")


def invoke(command: Callable[..., None], *arguments: Any) -> Result:
    """Runs a command in this process, on the tiny base and the CPU."""
    app = typer.Typer()
    app.command()(command)
    common = ["--base", str(tiny_base()), "--device", "cpu"]
    return CliRunner().invoke(app, [*map(str, arguments), *common], env={"COLUMNS": "200"})
