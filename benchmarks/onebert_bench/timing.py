"""Measures runs in interleaved repetitions, so that a machine whose speed drifts favors none."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch


def interleaved_ms(runs: Mapping[str, Callable[[], object]], repetitions: int, device: str = "cpu") -> dict[str, float]:
    """Median milliseconds of each run; in every repetition each runs once, after two rounds of warm-up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(repetitions + 2):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if device != "cpu":
                torch.cuda.synchronize()
            if repetition >= 2:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: median(values) for name, values in times.items()}
