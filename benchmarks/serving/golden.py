"""Measures how much golden logits differ between dtypes, and between tasks, for decision 4.

python benchmarks/serving/golden.py [--tasks 200]
"""

import argparse

import numpy as np
import torch

from onebert_bench.workload import bitfit_tensors
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_golden


def main() -> None:
    """Prints deviations relative to the largest logit of a task (at least 1)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=200)
    count = parser.parse_args().tasks
    logits = {}
    for dtype, threads in ((torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 2), (torch.int8, 2)):
        torch.set_num_threads(threads)
        base = load_base(dtype=dtype)
        rows = (fold(base, bitfit_tensors(base, seed)) for seed in range(count))
        logits[dtype, threads] = np.array([compute_golden(base, row, 128).logits for row in rows])
    exact = logits[torch.float32, 2]
    scale = np.maximum(1.0, np.abs(exact).max(axis=(1, 2)))
    for name, other in {
        "float32, another number of threads": logits[torch.float32, 1],
        "bfloat16": logits[torch.bfloat16, 2],
        "int8": logits[torch.int8, 2],
        "another task": np.roll(exact, 1, axis=0),
    }.items():
        deviation = np.abs(other - exact).max(axis=(1, 2)) / scale
        print(
            f"{name:36} median {np.median(deviation):.2g}  least {deviation.min():.2g}  largest {deviation.max():.2g}"
        )


if __name__ == "__main__":
    main()
