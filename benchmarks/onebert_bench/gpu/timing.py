"""Measures times on a device: of one step, of steps in a row, of launching, and of the device alone."""

import time
from collections.abc import Callable
from statistics import median

import torch

_WARM_UP = 3


def step_ms(run: Callable[[], object], repetitions: int) -> list[float]:
    """Milliseconds of each repetition, from the call until the device has nothing left to do."""
    taken = []
    for repetition in range(repetitions + _WARM_UP):
        started = time.perf_counter()
        run()
        wait()
        if repetition >= _WARM_UP:
            taken.append((time.perf_counter() - started) * 1e3)
    return taken


def row_ms(run: Callable[[], object], count: int) -> float:
    """Milliseconds of one step among many that are launched without waiting."""
    step_ms(run, 1)
    started = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - started) / count * 1e3


def launch_ms(run: Callable[[], object], repetitions: int) -> float:
    """Milliseconds that the host needs to launch one step on an idle device."""
    taken = []
    for _ in range(repetitions + _WARM_UP):
        wait()
        started = time.perf_counter()
        run()
        taken.append((time.perf_counter() - started) * 1e3)
    return median(taken[_WARM_UP:])


def device_ms(run: Callable[[], object], repetitions: int) -> float:
    """Milliseconds of the device for one call, by its events; on a CPU, of the call."""
    if not torch.cuda.is_available():
        return median(step_ms(run, repetitions))
    taken = []
    for _ in range(repetitions + _WARM_UP):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        run()
        after.record()
        after.synchronize()
        taken.append(before.elapsed_time(after))
    return float(median(taken[_WARM_UP:]))


def wait() -> None:
    """Waits until the device has nothing left to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
