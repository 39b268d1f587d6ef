"""Times of runs in turns, so that a machine whose speed drifts favors none; of steps of a device."""

import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from statistics import median
from typing import TypeVar

import torch

_WARM_UP = 3
Run = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


def in_turns(runs: Mapping[Key, Callable[[], Found]], turns: int, warm_up: int = 1) -> dict[Key, list[Found]]:
    """The results of each run, one a turn, behind turns that warm up; every other turn has the reverse order."""
    results: dict[Key, list[Found]] = {key: [] for key in runs}
    for turn in range(turns + warm_up):
        for key in list(runs)[:: -1 if turn % 2 else 1]:
            result = runs[key]()
            results[key] += [result] if turn >= warm_up else []
    return results


def interleaved_ms(runs: Mapping[str, Run], repetitions: int) -> dict[str, float]:
    """Median milliseconds of each run; in every repetition each runs once, after two rounds of warm-up."""
    times = in_turns({name: partial(_run_ms, run) for name, run in runs.items()}, repetitions, 2)
    return {name: median(values) for name, values in times.items()}


def step_ms(run: Run, repetitions: int) -> list[float]:
    """Milliseconds of each repetition, from the call until the device has nothing left to do."""
    return _warm(partial(_run_ms, run), repetitions)


def row_ms(run: Run, count: int) -> float:
    """Milliseconds of one step among many that are launched without waiting."""
    step_ms(run, 1)
    return _run_ms(lambda: [run() for _ in range(count)]) / count


def launch_ms(run: Run, repetitions: int) -> float:
    """Milliseconds that the host needs to launch one step on an idle device."""

    def launched() -> float:
        wait()
        started = time.perf_counter()
        run()
        return (time.perf_counter() - started) * 1e3

    return median(_warm(launched, repetitions))


def _run_ms(run: Run) -> float:
    started = time.perf_counter()
    run()
    wait()
    return (time.perf_counter() - started) * 1e3


def _warm(timed: Callable[[], float], repetitions: int) -> list[float]:
    """The times of so many calls, behind some that warm up."""
    return [timed() for _ in range(repetitions + _WARM_UP)][_WARM_UP:]


def wait() -> None:
    """Waits until the device has nothing left to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
