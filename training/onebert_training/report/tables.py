"""Groups records into results: runs that differ by seed, the best settings of each method, means and deviations."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, stdev

from onebert_training.report.records import Record
from onebert_training.tasks.metrics import LOWER_IS_BETTER, JackknifeScore, near_best

# Settings outside a trial's configuration: they identify the run, its method or its column, or are handled separately.
_NOT_CONFIGURATION = frozenset(
    {"method", "seed", "train_rows", "metric", "learning_rate", "head_learning_rate", "measure_train"}
)


@dataclass(frozen=True, order=True)
class Column:
    """One metric on one split of one data set, after training on `train_rows` rows."""

    data: str
    train_rows: int
    metric: str
    split: str

    @property
    def sign(self) -> int:
        """1 if larger scores are better, otherwise -1."""
        return -1 if self.metric in LOWER_IS_BETTER else 1


@dataclass(frozen=True)
class Trial:
    """Runs of one method in one column that differ only by their seed."""

    column: Column
    configuration: Mapping[str, object]
    runs: tuple[Record, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds; None for a single seed."""
        return stdev(self.values) if len(self.runs) > 1 else None

    @property
    def values(self) -> list[float]:
        """The score of every seed, as printed."""
        return [scaled(self.column, run.score) for run in self.runs]

    @property
    def strengths(self) -> list[float]:
        """The distinct strengths of exact heads, ascending; empty for other runs."""
        return sorted({run.strength for run in self.runs if run.strength is not None})

    @property
    def gaps(self) -> list[float]:
        """Generalization gaps: how much better the training rows score than the measured ones."""
        scores = [(run.train[run.metric], run.score) for run in self.runs if run.train is not None]
        return [self.column.sign * scaled(self.column, train - measured) for train, measured in scores]

    @property
    def validation(self) -> float:
        """Mean of the deciding metric on the validation split; it selects the settings."""
        return fmean(run.deciding_score for run in self.runs)

    @property
    def jackknife(self) -> JackknifeScore:
        """`validation` with the means of the jackknife blocks, if all runs have blocks."""
        blocks = zip(*(run.blocks for run in self.runs), strict=False)
        return JackknifeScore(self.column.metric, self.validation, tuple(map(fmean, blocks)))


@dataclass(frozen=True)
class Results:
    """All runs on one base.

    Attributes:
        methods: names, largest trained share first.
        tried: (method, column) -> one trial per configuration.
        best: (method, column) -> the trial with the best validation mean.
        repeated: number of duplicate records left out.
        outdated: number of records left out in favor of a later training revision on the same data.
        mixed: data sets whose records, including those left out, saw different rows.
    """

    base: str
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    tried: Mapping[tuple[str, Column], tuple[Trial, ...]]
    best: Mapping[tuple[str, Column], Trial]
    repeated: int
    outdated: int
    mixed: tuple[str, ...]

    @property
    def has_average(self) -> bool:
        """Whether a mean over the columns is meaningful: several data sets, each once, and no error metrics."""
        names = [column.data for column in self.columns]
        errors = LOWER_IS_BETTER & {column.metric for column in self.columns}
        return len(names) > 1 and len(set(names)) == len(names) and not errors

    def average(self, method: str) -> float | None:
        """Mean over the columns; None if one is missing."""
        trials = [self.best.get((method, column)) for column in self.columns]
        return fmean(trial.mean for trial in trials if trial) if all(trials) and self.has_average else None

    def winners(self, column: Column | None) -> set[str]:
        """Methods with the best printed number of a column, or of the average."""
        if column is None:
            numbers = {m: shown for m in self.methods if (shown := self.average(m)) is not None}
        else:
            numbers = {m: self.best[m, column].mean for m in self.methods if (m, column) in self.best}
        printed = {method: float(format_number(column, number)) for method, number in numbers.items()}
        lower = column is not None and column.metric in LOWER_IS_BETTER
        best = (min if lower else max)(printed.values(), default=None)
        return {method for method, number in printed.items() if number == best and len(printed) > 1}

    @property
    def runs(self) -> list[Record]:
        """All runs, in the order of the methods."""
        return [run for method in self.methods for run in self.runs_of(method)]

    def runs_of(self, method: str) -> list[Record]:
        return [run for (name, _), trials in self.tried.items() if name == method for c in trials for run in c.runs]


def collect(records: Iterable[Record]) -> list[Results]:
    """Groups records into results by base; duplicate runs count once."""
    by_base = sorted(records, key=lambda record: record.base)
    return [_of_base(base, list(group)) for base, group in groupby(by_base, key=lambda record: record.base)]


def choose(results: Results) -> list[Record]:
    """The run to publish by data set and metric: the smallest delta that the best does not lead beyond the error."""
    trials: dict[tuple[str, str], list[Trial]] = {}
    for trial in results.best.values():
        if all(run.file_bytes is not None for run in trial.runs):
            trials.setdefault((trial.column.data, trial.column.metric), []).append(trial)
    chosen = []
    for candidates in trials.values():
        rising = sorted(
            candidates,
            key=lambda trial: (max(r.file_bytes or 0 for r in trial.runs), -trial.column.sign * trial.validation),
        )
        trial = rising[near_best([candidate.jackknife for candidate in rising])]
        seeds = sorted(trial.runs, key=lambda run: run.seed)
        chosen.append(seeds[near_best([run.jackknife for run in seeds])])
    return chosen


def scaled(column: Column, score: float) -> float:
    """A score as printed."""
    return score if column.metric in LOWER_IS_BETTER else 100 * score


def format_number(column: Column | None, number: float) -> str:
    """Per cents with one decimal; errors, in the data's unit, with four."""
    return f"{number:.4f}" if column is not None and column.metric in LOWER_IS_BETTER else f"{number:.1f}"


def format_mean(column: Column, mean: float, spread: float | None) -> str:
    """`53.9 ± 1.6`, or `53.9` for a single seed."""
    shown = format_number(column, mean)
    return shown if spread is None else f"{shown} ± {format_number(column, spread)}"


def format_trial(trial: Trial) -> str:
    """Mean and deviation of a trial."""
    return format_mean(trial.column, trial.mean, trial.spread)


def format_configuration(configuration: Mapping[str, object], names: Sequence[str]) -> str:
    """`learning_rate 0.0005, batch_size 8`, without settings that the configuration lacks."""
    values = {name: configuration[name] for name in names if name in configuration}
    return ", ".join(f"{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in values.items())


def varied(trials: Iterable[Trial]) -> list[str]:
    """Names of the settings that differ between trials, and always the learning rate."""
    values: dict[str, set[object]] = {}
    for trial in trials:
        for name, value in trial.configuration.items():
            values.setdefault(name, set()).add(value)
    return [
        "learning_rate",
        *(name for name, distinct in values.items() if len(distinct) > 1 and name != "learning_rate"),
    ]


def results_markdown(records: Iterable[Record]) -> str:
    """The results table in the papers' form, one per base.

    Methods are rows, with the size of their deltas in per cent of the base; data sets are columns. Cells are mean ±
    standard deviation over the seeds in per cent, at the settings with the best validation mean; the best is bold.
    """
    results = collect(records)
    parts = []
    for result in results:
        if len(results) > 1:
            parts.append(f"### {_cell_text(result.base)}")
        parts.append("\n".join(_markdown_rows(result)))
    return "\n\n".join(parts) + "\n"


def headings(results: Results) -> list[tuple[str, str]]:
    """Title and subtitle of each column, with the number of rows if a data set has several sizes."""
    names = [(column.data, column.metric, column.split) for column in results.columns]
    shown = []
    for column in results.columns:
        several = names.count((column.data, column.metric, column.split)) > 1
        shown.append((column.data, f"{column.metric}, {column.split}" + f", {column.train_rows:,} rows" * several))
    return shown


def drawable(results: Results, has: Callable[[Trial], object]) -> Iterator[tuple[Column, str, dict[str, Trial]]]:
    """Each column and its name, with the best trials of methods for which `has` is true; none without such trials."""
    for column, (_, under) in zip(results.columns, headings(results), strict=True):
        best = {method: results.best.get((method, column)) for method in results.methods}
        if trials := {method: trial for method, trial in best.items() if trial and has(trial)}:
            yield column, f"{column.data} ({under})", trials


def format_percent(run: Record) -> str:
    """The trained share of the parameters with two decimals, as in papers."""
    return f"{run.percent:.2f} %"


def _markdown_rows(results: Results) -> list[str]:
    titles = [f"{_cell_text(name)} ({_cell_text(sub)})" for name, sub in headings(results)]
    head = ["method", "% of parameters", *titles, *["average"] * results.has_average]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for method, percent, cells in result_rows(results):
        code = method.replace("`", "'").replace("|", r"\|")
        rows.append([f"`{code}`", percent, *(f"**{text}**" if best else text for text, best in cells)])
    return [f"| {' | '.join(row)} |" for row in rows]


def result_rows(results: Results) -> Iterator[tuple[str, str, list[tuple[str, bool]]]]:
    """Each method with its trained share, and per column, then for an average, the text and whether it is the best."""
    columns: list[Column | None] = [*results.columns, *[None] * results.has_average]
    winners = {column: results.winners(column) for column in columns}
    for method in results.methods:
        cells = [(_format_entry(results, method, column), method in winners[column]) for column in columns]
        yield method, format_percent(results.runs_of(method)[0]), cells


def _format_entry(results: Results, method: str, column: Column | None) -> str:
    """The text of one cell: column None is the average, and an en dash means "not run"."""
    if column is None:
        average = results.average(method)
        return "–" if average is None else format_number(None, average)
    trial = results.best.get((method, column))
    return "–" if trial is None else format_trial(trial)


def _cell_text(text: str) -> str:
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(text.split()))


def _of_base(base: str, records: Sequence[Record]) -> Results:
    trials: dict[tuple[str, Column], dict[tuple[tuple[str, object], ...], dict[int, Record]]] = {}
    names = sorted({name for record in records for name in record.settings} - _NOT_CONFIGURATION)
    every, records = records, _of_latest_revision(records)
    for record in records:
        configuration = tuple(_configuration(record, names).items())
        trials.setdefault(_place(record), {}).setdefault(configuration, {}).setdefault(record.seed, record)
    tried = {
        key: tuple(Trial(key[1], dict(configuration), tuple(runs.values())) for configuration, runs in runs_of.items())
        for key, runs_of in trials.items()
    }
    percents = {record.method: record.percent for record in records}
    return Results(
        base=base,
        methods=tuple(sorted(percents, key=lambda method: (-percents[method], method))),
        columns=tuple(sorted({column for _, column in tried})),
        tried=tried,
        best={key: _choose(cell) for key, cell in tried.items()},
        repeated=len(records) - sum(len(trial.runs) for cell in tried.values() for trial in cell),
        outdated=len(every) - len(records),
        mixed=_mixed(records),
    )


def _place(record: Record) -> tuple[str, Column]:
    return record.method, Column(record.data_name, record.rows.get("train", 0), record.metric, record.split)


def _of_latest_revision(records: Sequence[Record]) -> list[Record]:
    latest: dict[tuple[str, Column], int] = {}
    for record in records:
        latest[_place(record)] = max(record.revision, latest.get(_place(record), 0))
    return [record for record in records if record.revision == latest[_place(record)]]


def _mixed(records: Sequence[Record]) -> tuple[str, ...]:
    """Data sets with equal row counts but different digests: such a run may be left out as a duplicate of another."""
    digests: dict[tuple[str, str], set[str]] = {}
    for record in records:
        key = (record.data_name, str(sorted(record.rows.items())))
        digests.setdefault(key, set()).add(record.data.digest if record.data else "")
    return tuple(sorted({name for (name, _), seen_digests in digests.items() if len(seen_digests) > 1}))


def _configuration(record: Record, names: Sequence[str]) -> dict[str, object]:
    """The named settings; a record older than a setting counts as not having set it."""
    if record.strength is not None:  # an exact head has no optimizer settings
        return {"dtype": record.dtype, **{name: record.settings[name] for name in names if name in record.settings}}
    # Records without a head rate are of runs with a single rate.
    head_rate = record.head_learning_rate not in (None, record.learning_rate)
    rates = {
        "learning_rate": record.learning_rate,
        "head_learning_rate": record.head_learning_rate if head_rate else "same",
    }
    return {**rates, "dtype": record.dtype, **{name: record.settings.get(name) for name in names}}


def _choose(trials: Sequence[Trial]) -> Trial:
    max_seeds = max(len(trial.runs) for trial in trials)
    full = [trial for trial in trials if len(trial.runs) == max_seeds]
    return max(full, key=lambda trial: trial.column.sign * trial.validation)
