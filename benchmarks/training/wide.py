"""Writes benchmarks/results/study-wide.md from recorded runs: what a deep, wide base gives, and what a method gives.

    onebert sweep training/recipes/study-wide.toml --data FOLDER --out RUNS --dtype bfloat16
    onebert sweep training/recipes/study-wide-rates.toml --data FOLDER --out RUNS --dtype bfloat16
    (both once more with --base sentence-transformers/all-mpnet-base-v2)
    python benchmarks/training/wide.py RUNS

Two methods, or two bases, are compared on each data set by the mean over the seeds that both have. A difference is the
mean over the data sets; ± is the 95 % interval of the mean over such sets (Student's t), and one set may differ more.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from scipy import stats
from study import about

from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS
from onebert_encoder.base.source import DEFAULT_BASE
from onebert_training.methods.methods import parse_method
from onebert_training.report.records import Record, load_records
from onebert_training.report.tables import Results, collect, results_markdown

PAGE = RESULTS / "study-wide.md"
DEFAULT = "bitfit+gamma+svd"
# The revisions of the runs that showed which default rates were wrong, and of the study.
BEFORE, STUDIED = 4, 5
# In the paper's proportions on twelve layers; on six it is another method, of which nothing is claimed.
SPAFIT = "spafit:2-4-I"
# A sentence, two methods, and the least difference in percentage points by which the sentence holds.
CLAIMS = (
    ("training pays beside the exact head", DEFAULT, "head", 0),
    ("BitFit is on a par with full fine-tuning", "bitfit", "full", -2),
    ("LayerNorm is as good as BitFit", "layernorm", "bitfit", -2),
    ("LayerNorm comes close to full", "layernorm", "full", -2),
    ("SPAFIT is no worse than LoRA everywhere", SPAFIT, "lora", -1),
    ("SPAFIT is no worse than BitFit", SPAFIT, "bitfit", -1),
    ("SPAFIT comes close to full", SPAFIT, "full", -2),
    ("the default comes close to full", DEFAULT, "full", -1),
    ("the default is better than BitFit", DEFAULT, "bitfit", 0),
    ("the leading singular parts are enough without biases", "svd", DEFAULT, -1),
)

Scores = Mapping[str, float]


def main(runs: list[Path]) -> None:
    """Reads the folders of records and writes the page's tables."""
    every = load_records(runs)
    records = current(every)
    bases = {one.base: one for one in collect(records)}
    small = bases.pop(DEFAULT_BASE)
    [wide] = bases.values()
    [tried] = collect(one for one in every if one.revision == BEFORE and one.base == wide.base)
    write_section(PAGE, "about", "\n\n".join(about([*base.runs]) for base in (wide, small)))
    write_section(PAGE, "table", results_markdown(records))
    claims = [
        [
            text,
            f"`{one}` - `{other}`, {bound:+g} or more",
            found(wide, one, other, bound),
            found(small, one, other, bound),
        ]
        for text, one, other, bound in CLAIMS
    ]
    write_section(PAGE, "claims", markdown_table(["claim", "as a difference", wide.base, small.base], claims))
    columns = sorted({column.data for column in wide.columns})
    gains = [
        [f"`{method}`", *_line(differences(scores(wide, method), scores(small, method)), columns)]
        for method in ("head", "bitfit", DEFAULT, "full")
    ]
    write_section(PAGE, "gains", markdown_table(["method", *columns, "mean"], gains))
    write_section(PAGE, "rates", markdown_table(["method", "data", "rate", "validation", "test"], list(rates(tried))))


def current(records: Sequence[Record]) -> list[Record]:
    """Counts a run of the revision before as one of the study's if it had the study's rate: nothing else changed."""
    default = {_about(one) for one in records if one.revision == STUDIED}
    return [one.model_copy(update={"revision": STUDIED}) if _about(one) in default else one for one in records]


def _about(one: Record) -> tuple[object, ...]:
    return one.base, one.task, one.method, one.learning_rate


def rates(results: Results) -> Iterator[list[str]]:
    """A line for each of several learning rates: the deciding metric and the measured one."""
    for (method, column), trials in results.tried.items():
        if len(trials) > 1:
            for trial in sorted(trials, key=lambda one: one.runs[0].learning_rate or 0):
                rate = f"{trial.runs[0].learning_rate:g}"
                yield [f"`{method}`", column.data, rate, f"{100 * trial.validation:.1f}", f"{trial.mean:.1f}"]


def scores(results: Results, method: str) -> dict[tuple[str, int], float]:
    """The measured metric in per cent by data set and seed."""
    text = parse_method(method).text
    trials = [trial for (name, _), trial in results.best.items() if name == text]
    return {(trial.column.data, run.seed): 100 * run.score for trial in trials for run in trial.runs}


def differences(one: Mapping[tuple[str, int], float], other: Mapping[tuple[str, int], float]) -> Scores:
    """By data set, the mean difference over the seeds that both have."""
    found: dict[str, list[float]] = {}
    for data, seed in sorted(one.keys() & other.keys()):
        found.setdefault(data, []).append(one[data, seed] - other[data, seed])
    return {data: fmean(each) for data, each in found.items()}


def found(results: Results, one: str, other: str, bound: float) -> str:
    """The difference of two methods on a base, and whether it is above the bound."""
    by_data = differences(scores(results, one), scores(results, other))
    if len(by_data) < 2 or (one == SPAFIT and results.base == DEFAULT_BASE):
        return "–"
    mean, error = _mean(list(by_data.values()))
    margin = mean - bound
    verdict = "agrees" if margin > error else "does not" if margin < -error else "undecided"
    each = ", ".join(f"{data} {points:+.1f}" for data, points in by_data.items())
    return f"{mean:+.1f} ± {error:.1f}: {verdict} ({each})"


def _line(by_data: Scores, columns: Sequence[str]) -> list[str]:
    mean, error = _mean(list(by_data.values()))
    return [*(f"{by_data[data]:+.1f}" if data in by_data else "–" for data in columns), f"{mean:+.1f} ± {error:.1f}"]


def _mean(values: Sequence[float]) -> tuple[float, float]:
    return fmean(values), float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))


if __name__ == "__main__":
    main(list(map(Path, sys.argv[1:])))
