"""Groups records into results: runs that belong together, the best settings of each method, means and deviations."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, stdev

from onebert_training.report.records import Record
from onebert_training.tasks.metrics import LOWER_IS_BETTER, Judged, near_best

# Settings that are no part of a trial's configuration: those that identify the run, its method or its column, and those
# that are handled apart.
_NOT_CONFIGURATION = frozenset(
    {"method", "seed", "train_rows", "metric", "learning_rate", "head_learning_rate", "measure_train"}
)


@dataclass(frozen=True, order=True)
class Column:
    """What is measured: one metric on one split of one data set, after training on so many rows."""

    data: str
    train_rows: int
    metric: str
    split: str

    @property
    def sign(self) -> int:
        """1 if a larger score is better, -1 if a smaller one is."""
        return -1 if self.metric in LOWER_IS_BETTER else 1


@dataclass(frozen=True)
class Trial:
    """The runs of one method in one column that differ only by their seed."""

    column: Column
    configuration: Mapping[str, object]
    runs: tuple[Record, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds, as printed."""
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
        """The different strengths of exact heads, rising; of what was trained by steps none."""
        return sorted({run.strength for run in self.runs if run.strength is not None})

    @property
    def gaps(self) -> list[float]:
        """Generalization gaps: how much better the training rows score than the measured ones."""
        scores = [(run.train[run.metric], run.score) for run in self.runs if run.train is not None]
        return [self.column.sign * scaled(self.column, train - measured) for train, measured in scores]

    @property
    def validation(self) -> float:
        """Mean of the deciding metric on the validation split, by which settings are chosen."""
        return fmean(run.decided for run in self.runs)

    @property
    def judged(self) -> Judged:
        """The same with what its standard error is made of, where all runs have that."""
        blocks = zip(*(run.blocks for run in self.runs), strict=False)
        return Judged(self.column.metric, self.validation, tuple(map(fmean, blocks)))


@dataclass(frozen=True)
class Results:
    """Everything that was run on one base.

    Attributes:
        methods: names of the methods, the one with the largest trained share first.
        tried: (method, column) -> a trial for every configuration.
        best: (method, column) -> the trial whose validation mean is best.
        repeated: records left out because another is the same run.
        outdated: records left out because the same method has later ones on the same data, trained by other steps.
        mixed: names of data of which not all records, those left out among them, saw the same rows.
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
        """Mean over the columns; None where one is missing."""
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

    def runs_of(self, method: str) -> list[Record]:
        """All runs of a method."""
        return [run for (name, _), trials in self.tried.items() if name == method for c in trials for run in c.runs]


def collect(records: Iterable[Record]) -> list[Results]:
    """Sorts records into results, base by base; equal runs count once."""
    by_base = sorted(records, key=lambda record: record.base)
    return [_of_base(base, list(group)) for base, group in groupby(by_base, key=lambda record: record.base)]


def choose(results: Results) -> list[Record]:
    """The run to publish for each data set and metric.

    Among the runs with a delta: the smallest file whose mean over the seeds the best one is not ahead of, on the rows
    that decide; and of its seeds the first that the best one is not ahead of.
    """
    trials: dict[tuple[str, str], list[Trial]] = {}
    for trial in results.best.values():
        if all(run.file_bytes is not None for run in trial.runs):
            trials.setdefault((trial.column.data, trial.column.metric), []).append(trial)
    chosen = []
    for own in trials.values():
        rising = sorted(
            own, key=lambda one: (max(r.file_bytes or 0 for r in one.runs), -one.column.sign * one.validation)
        )
        trial = rising[near_best([one.judged for one in rising])]
        seeds = sorted(trial.runs, key=lambda run: run.seed)
        chosen.append(seeds[near_best([run.judged for run in seeds])])
    return chosen


def scaled(column: Column, score: float) -> float:
    """A score as it is printed."""
    return score if column.metric in LOWER_IS_BETTER else 100 * score


def format_number(column: Column | None, number: float) -> str:
    """Per cents with one decimal; errors, which have the unit of their data, with four."""
    return f"{number:.4f}" if column is not None and column.metric in LOWER_IS_BETTER else f"{number:.1f}"


def format_mean(column: Column, mean: float, spread: float | None) -> str:
    """`53.9 ± 1.6`, or `53.9` for a single seed."""
    shown = format_number(column, mean)
    return shown if spread is None else f"{shown} ± {format_number(column, spread)}"


def format_trial(trial: Trial) -> str:
    """The same of a trial."""
    return format_mean(trial.column, trial.mean, trial.spread)


def format_configuration(configuration: Mapping[str, object], names: Sequence[str]) -> str:
    """`learning_rate 0.0005, batch_size 8`; nothing of what the configuration has not."""
    values = {name: configuration[name] for name in names if name in configuration}
    return ", ".join(f"{name} {f'{one:g}' if isinstance(one, float) else one}" for name, one in values.items())


def varied(trials: Iterable[Trial]) -> list[str]:
    """Names of the settings that differ between trials, and always the learning rate."""
    values: dict[str, set[object]] = {}
    for trial in trials:
        for name, value in trial.configuration.items():
            values.setdefault(name, set()).add(value)
    return ["learning_rate", *(name for name, seen in values.items() if len(seen) > 1 and name != "learning_rate")]


def results_markdown(records: Iterable[Record]) -> str:
    """The results table in the papers' form, one for each base.

    Methods are rows, with the size of their deltas in per cent of the base; data sets are columns. A number is the mean
    ± standard deviation over the seeds, in per cent, at the settings whose validation mean is best; the best is bold.
    """
    results = collect(records)
    parts = []
    for result in results:
        if len(results) > 1:
            parts.append(f"### {_cell_text(result.base)}")
        parts.append("\n".join(_markdown_rows(result)))
    return "\n\n".join(parts) + "\n"


def headings(results: Results) -> list[tuple[str, str]]:
    """Title and subtitle of each column; the number of rows is given only if a data set has several sizes."""
    names = [(column.data, column.metric, column.split) for column in results.columns]
    shown = []
    for column in results.columns:
        several = names.count((column.data, column.metric, column.split)) > 1
        shown.append((column.data, f"{column.metric}, {column.split}" + f", {column.train_rows:,} rows" * several))
    return shown


def format_percent(run: Record) -> str:
    """The trained share of the parameters with two decimals, as in papers."""
    return f"{run.percent:.2f} %"


def _markdown_rows(results: Results) -> list[str]:
    titles = [f"{_cell_text(name)} ({_cell_text(sub)})" for name, sub in headings(results)]
    head = ["method", "% of parameters", *titles]
    columns: list[Column | None] = [*results.columns, *([None] if results.has_average else [])]
    if results.has_average:
        head.append("average")
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    winners = {column: results.winners(column) for column in columns}
    for method in results.methods:
        row = [_code_text(method), format_percent(results.runs_of(method)[0])]
        for column in columns:
            text = format_entry(results, method, column)
            row.append(f"**{text}**" if method in winners[column] else text)
        rows.append(row)
    return [f"| {' | '.join(row)} |" for row in rows]


def format_entry(results: Results, method: str, column: Column | None) -> str:
    """The text of one cell: the column None is the average, and an en dash stands for "not run"."""
    if column is None:
        average = results.average(method)
        return "–" if average is None else format_number(None, average)
    trial = results.best.get((method, column))
    return "–" if trial is None else format_trial(trial)


def _cell_text(text: str) -> str:
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(text.split()))


def _code_text(text: str) -> str:
    text = text.replace("`", "'").replace("|", r"\|")
    return f"`{text}`"


def _of_base(base: str, records: Sequence[Record]) -> Results:
    trials: dict[tuple[str, Column], dict[tuple[tuple[str, object], ...], dict[int, Record]]] = {}
    names = sorted({name for record in records for name in record.settings} - _NOT_CONFIGURATION)
    every, records = records, _of_latest_revision(records)
    for record in records:
        configuration = tuple(_configuration(record, names).items())
        trials.setdefault(_place(record), {}).setdefault(configuration, {}).setdefault(record.seed, record)
    tried = {
        key: tuple(Trial(key[1], dict(configuration), tuple(runs.values())) for configuration, runs in found.items())
        for key, found in trials.items()
    }
    percents = {record.method: record.percent for record in records}
    return Results(
        base=base,
        methods=tuple(sorted(percents, key=lambda method: (-percents[method], method))),
        columns=tuple(sorted({column for _, column in tried})),
        tried=tried,
        best={key: _choose(found) for key, found in tried.items()},
        repeated=len(records) - sum(len(trial.runs) for found in tried.values() for trial in found),
        outdated=len(every) - len(records),
        mixed=_mixed(records),
    )


def _place(record: Record) -> tuple[str, Column]:
    """Where a record stands in the table."""
    return record.method, Column(record.data_name, record.rows.get("train", 0), record.metric, record.split)


def _of_latest_revision(records: Sequence[Record]) -> list[Record]:
    """Of each place of the table the records of the latest way to take steps."""
    latest: dict[tuple[str, Column], int] = {}
    for record in records:
        latest[_place(record)] = max(record.revision, latest.get(_place(record), 0))
    return [record for record in records if record.revision == latest[_place(record)]]


def _mixed(records: Sequence[Record]) -> tuple[str, ...]:
    """Names of data with as many rows, and yet other ones: a run on these may be left out as the repeat of another."""
    digests: dict[tuple[str, str], set[str]] = {}
    for record in records:
        key = (record.data_name, str(sorted(record.rows.items())))
        digests.setdefault(key, set()).add(record.data.digest if record.data else "")
    return tuple(sorted({name for (name, _), found in digests.items() if len(found) > 1}))


def _configuration(record: Record, names: Sequence[str]) -> dict[str, object]:
    """The settings of these names; a record that is older than a setting was made as if it were not set."""
    if record.strength is not None:  # an exact head, which has no settings of steps
        return {"dtype": record.dtype, **{name: record.settings[name] for name in names if name in record.settings}}
    # Records that name no rate of the head are of runs that had one rate for everything.
    own = record.head_learning_rate not in (None, record.learning_rate)
    rates = {"learning_rate": record.learning_rate, "head_learning_rate": record.head_learning_rate if own else "same"}
    return {**rates, "dtype": record.dtype, **{name: record.settings.get(name) for name in names}}


def _choose(trials: Sequence[Trial]) -> Trial:
    """The trial that is best on validation among those with the most seeds, since a single seed may be lucky."""
    most = max(len(trial.runs) for trial in trials)
    full = [trial for trial in trials if len(trial.runs) == most]
    return max(full, key=lambda trial: trial.column.sign * trial.validation)
