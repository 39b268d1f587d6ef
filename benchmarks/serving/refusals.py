"""How often does a gate refuse a version that is as good as the live one? Simulated answers, the gate's own judgement.

`python benchmarks/serving/refusals.py`. Both versions answer 85 of 100 rows rightly, each row independently of the
other version but for a common part (`--alike`), and differ by chance alone.
"""

import argparse

import numpy as np

from onebert_server.extensions.gate.judge import JudgedRows, checks_of, measure
from onebert_server.extensions.gate.rules import Gate

SIMULATED, ACCURACY, BOUND = 4000, 0.85, 0.05
# (slices, rows of each): as in a gate of few countries, and of many.
SIZES = ((4, 50), (10, 50), (20, 30), (4, 500))


def refused(slices: int, rows: int, alike: float, rng: np.random.Generator) -> bool:
    """Whether the gate refuses a version whose answers have the same distribution as the live one's."""
    count = slices * rows
    common, sides = rng.random(count) < ACCURACY, rng.random((2, count)) < ACCURACY
    shared = rng.random(count) < alike
    candidate, live = (np.where(np.where(shared, common, side), "right", "wrong").tolist() for side in sides)
    cells = [{"slice": str(row // rows)} for row in range(count)]
    gate = Gate.model_validate({"slices": {"columns": ["slice"], "worst_drop": BOUND}})
    numbers = measure(gate, JudgedRows(["right"] * count, candidate, live, cells))
    return not all(check.passed for check in checks_of(gate, numbers, 0))


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alike", type=float, default=0.5, help="share of rows that both answer by one draw")
    alike = parser.parse_args().alike
    print("| slices | rows of each | refused |\n|-|-|-|")
    for slices, rows in SIZES:
        rng = np.random.default_rng(0)
        share = np.mean([refused(slices, rows, alike, rng) for _ in range(SIMULATED)])
        print(f"| {slices} | {rows} | {share:.1%} |")


if __name__ == "__main__":
    main()
