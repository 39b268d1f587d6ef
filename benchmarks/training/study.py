"""Writes benchmarks/results/study.md from recorded runs: tables, and the papers' claims beside findings.

    onebert sweep training/recipes/study.toml --data FOLDER --out RUNS
    python benchmarks/training/study.py RUNS

A claim compares two methods, seed by seed, on the data sets that tell methods apart, or on those that it names, as far
as they have both. The difference on a data set is the mean over its seeds; the claim's difference is the mean over the
data sets, its error two standard errors of that mean.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, variance

from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS
from onebert_training.methods.methods import parse_method
from onebert_training.report.records import Record, load_records
from onebert_training.report.tables import Results, collect, results_markdown

PAGE = RESULTS / "study.md"

# The study's data sets on which methods differ by more than chance; on its others, with so few rows, they do not.
TELLING = ("ewt_pos", "sst2", "stsb")

# What a section of the page tells of, by the end of the section's name.
SECTIONS: dict[str, Callable[[Record], bool]] = {
    "": lambda run: run.experiment == "study" and run.data_name in TELLING,
    "-few": lambda run: run.experiment == "study" and run.data_name not in TELLING,
}

Score = Callable[[Record], float | None]


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another, in percentage points of the metric.

    Attributes:
        by_data: for each data set, the mean over the seeds and its variance.
    """

    by_data: dict[str, tuple[float, float]]

    @property
    def mean(self) -> float:
        """Mean over the data sets."""
        return fmean(mean for mean, _ in self.by_data.values())

    @property
    def error(self) -> float:
        """Two standard errors of the mean."""
        return 2 * sqrt(sum(spread for _, spread in self.by_data.values())) / len(self.by_data)

    def __str__(self) -> str:
        each = ", ".join(f"{data} {mean:+.1f}" for data, (mean, _) in self.by_data.items())
        return f"{self.mean:+.1f} ± {self.error:.1f} ({each})"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper as a comparison: `one` minus `other` is above (or below) a bound.

    Attributes:
        bound: the bound in percentage points of the metric.
        above: whether the claim is that the difference is above the bound; otherwise below.
        score: reads the compared number from a run.
        only: data sets that the claim is about.
    """

    paper: str
    text: str
    one: str
    other: str
    bound: float
    above: bool
    score: Score
    only: tuple[str, ...] = TELLING

    def check(self, results: Results) -> list[str]:
        """Checks the claim; returns a line of the table."""
        found = difference(results, self)
        if found is None:
            return [self.paper, self.text, "not run", "–"]
        sign = 1 if self.above else -1
        margin = sign * (found.mean - self.bound)
        verdict = "agrees" if margin > found.error else "does not" if margin < -found.error else "undecided"
        relation = "above" if self.above else "below"
        return [
            self.paper,
            self.text,
            f"`{self.one}` - `{self.other}`: {found}; claimed {relation} {self.bound:+g}",
            verdict,
        ]


def measured(run: Record) -> float:
    """The deciding metric on the split that the run is measured on."""
    return 100 * run.score


def gap(run: Record) -> float | None:
    """The metric on the training rows minus that on the measured split; None if it was not measured."""
    return None if run.train is None else 100 * (run.train[run.metric] - run.score)


BITFIT, FREEZE, PLUS = "BitFit", "What Parameters to Freeze?", "BitFit+"
SPAFIT, TINY = "SPAFIT", "Efficient Fine-Tuning with BitFit?"
CLAIMS = (
    Claim(BITFIT, "BitFit is on a par with full fine-tuning", "bitfit", "full", -2, True, measured),
    Claim(BITFIT, "also where every word is tagged", "bitfit", "full", -1, True, measured, ("ewt_pos",)),
    Claim(BITFIT, "b_q and b_m2 alone lose little", "bitfit:bq,bm2", "bitfit", -2, True, measured),
    Claim(BITFIT, "random weights are worse than biases", "random:0.1%", "bitfit", 0, False, measured),
    Claim(BITFIT, "so are random rows", "random-rows:0.09%", "bitfit", 0, False, measured),
    Claim(BITFIT, "so are random columns", "random-cols:0.09%", "bitfit", 0, False, measured),
    Claim(BITFIT, "a frozen encoder is far worse", "frozen", "bitfit", -5, False, measured),
    Claim(BITFIT, "the generalization gap is smaller than full fine-tuning's", "bitfit", "full", 0, False, gap),
    Claim(FREEZE, "LayerNorm is as good as BitFit", "layernorm", "bitfit", -2, True, measured),
    Claim(FREEZE, "LayerNorm comes close to full", "layernorm", "full", -2, True, measured),
    Claim(FREEZE, "random weights beat BitFit on SST-2", "random:0.1%", "bitfit", 0, True, measured, ("sst2",)),
    Claim(FREEZE, "biases from zero cost RTE most it learned", "init-bias", "bitfit", -5, False, measured, ("rte",)),
    Claim(FREEZE, "and SST-2 next to nothing", "init-bias", "bitfit", -2, True, measured, ("sst2",)),
    Claim(FREEZE, "nothing without pretraining", "reinit+bitfit", "bitfit", -5, False, measured, ("cola", "sst2")),
    Claim(SPAFIT, "it is no worse than LoRA everywhere", "spafit:1-3-I", "lora:I", -1, True, measured),
    Claim(SPAFIT, "it is no worse than BitFit", "spafit:1-3-I", "bitfit", -1, True, measured),
    Claim(SPAFIT, "it comes close to full", "spafit:1-3-II", "full", -2, True, measured),
    Claim(PLUS, "random biases do as well as b_q, b_m2", "random-bias:0.04%", "bitfit:bq,bm2", -1, True, measured),
    Claim(PLUS, "so do all the other biases", "bitfit:-bq,-bm2", "bitfit:bq,bm2", -1, True, measured),
    Claim(PLUS, "gains alone are worse than biases", "gamma", "bitfit", 0, False, measured),
    Claim(PLUS, "g_LN2 is better than g_LN1", "gamma:gLN2", "gamma:gLN1", 0, True, measured),
    Claim(PLUS, "gains beside biases add nothing", "bitfit+gamma", "bitfit", 1, False, measured),
    Claim(TINY, "on a small model full fine-tuning is better", "full", "bitfit", 0, True, measured),
)


def difference(results: Results, claim: Claim) -> Difference | None:
    """The two methods' difference on the data sets that have both; None if there are none."""
    one, other = (parse_method(method).text for method in (claim.one, claim.other))
    found = {}
    for column in results.columns:
        trials = [results.best.get((method, column)) for method in (one, other)]
        if trials[0] is None or trials[1] is None or column.data not in claim.only:
            continue
        scores = [{run.seed: claim.score(run) for run in trial.runs} for trial in trials if trial]
        pairs = [(scores[0][seed], scores[1][seed]) for seed in sorted(scores[0].keys() & scores[1].keys())]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        if len(differences) > 1:
            found[column.data] = fmean(differences), variance(differences) / len(differences)
    return Difference(found) if found else None


def main(runs: list[Path]) -> None:
    """Reads the folders of records and writes the page's tables."""
    every = load_records(runs)
    for end, belongs in SECTIONS.items():
        if own := [one for one in every if belongs(one)]:
            write_section(PAGE, f"about{end}", about(own))
            write_section(PAGE, f"table{end}", results_markdown(own))
    records = [one for one in every if one.experiment == "study"]
    (compared,) = collect(records)
    lines = [claim.check(compared) for claim in CLAIMS]
    write_section(PAGE, "claims", markdown_table(["paper", "claim", "found, in percentage points", "verdict"], lines))


def about(records: list[Record]) -> str:
    """A sentence on the runs: how many, and on what."""
    first = records[0]
    names = sorted({record.data_name for record in records})
    rows = {record.data_name: record.rows for record in records}
    seeds = ", ".join(map(str, sorted({record.seed for record in records})))
    head = f"{len(records)} runs on `{first.base}`, {dtypes(records)}, seeds {seeds}; rows of each split:"
    splits = ("train", "validation", "test")
    table = markdown_table(["data", *splits], [[n, *(rows[n].get(split, "–") for split in splits)] for n in names])
    return f"{head}\n\n{table}"


def dtypes(records: list[Record]) -> str:
    """In which data types runs computed: `float32`; of several, the methods of each but the commonest."""
    counts = Counter(record.dtype for record in records)
    (common, _), *others = counts.most_common()
    parts = [common]
    for dtype in (name for name, _ in others):
        methods = sorted({record.method for record in records if record.dtype == dtype})
        parts.append(f"{dtype} for {', '.join(f'`{method}`' for method in methods)}")
    return ", ".join(parts)


if __name__ == "__main__":
    main(list(map(Path, sys.argv[1:])))
