"""The report page: tables and pictures in one self-contained HTML file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from statistics import fmean
from typing import Any
from urllib.parse import quote

from onebert_training.report import tables
from onebert_training.report.changes import draw_changes
from onebert_training.report.curves import draw_curves
from onebert_training.report.document import provenance, rendered
from onebert_training.report.plots import Picture
from onebert_training.report.scores import draw_gaps, draw_scores, draw_sizes

_PARAMETERS = ("method", "trained", "% of parameters", "classifier", "file, kB", "seconds a run")


def render(
    sections: Sequence[tuple[tables.Results, Sequence[Picture]]],
    evaluated: Sequence[tuple[str, str]] = (),
    files: Sequence[Sequence[str]] = (),
) -> str:
    """One HTML page, a section per base, with paths relative to it: pages `evaluated`, records and deltas `files`."""
    runs = [run for results, _ in sections for run in results.runs]
    return rendered(
        "report.html",
        "OneBERT report",
        sections=[_section(*section) for section in sections],
        evaluated=evaluated,
        files=files,
        made=provenance(),
        data=sorted({(run.data.name, run.data.digest) for run in runs if run.data}),
        PARAMETERS=[(title, "") for title in _PARAMETERS],
        # File names are bytes and may not be UTF-8.
        quoted=lambda path: quote(os.fsencode(path)),
        readable=lambda name: os.fsencode(name).decode(errors="replace"),
        name_of=lambda path: PurePath(path).name,
    )


def _section(results: tables.Results, pictures: Sequence[Picture]) -> dict[str, Any]:
    columns, trials = tables.headings(results), [trial for tried in results.tried.values() for trial in tried]
    names = tables.varied(trials)
    return {
        "base": results.base,
        "note": _note(results),
        "columns": columns,
        "head": columns + [("average", "")] * results.has_average,
        "rows": list(tables.result_rows(results)),
        "pictures": pictures,
        "parameters": [_parameters(method, results) for method in results.methods],
        "chosen": [_chosen(method, results, names) for method in results.methods],
        "tried": list(_tried(results, names)) if len(trials) > len(results.tried) else [],
    }


def _note(results: tables.Results) -> str:
    experiments = sorted({run.experiment for run in results.runs if run.experiment})
    note = f"{len(results.runs)} runs" + (f" of {', '.join(experiments)}" if experiments else "")
    if results.repeated:
        note += f"; {results.repeated} records repeat a run with the same settings and seed and are skipped"
    if results.outdated:
        note += f"; {results.outdated} records are of runs of an earlier training revision, and are skipped"
    if results.mixed:
        note += f"; not all runs on {', '.join(results.mixed)} saw the same rows (their digests differ)"
    return note


def _parameters(method: str, results: tables.Results) -> list[str]:
    runs = results.runs_of(method)
    files = [run.file_bytes for run in runs if run.file_bytes is not None]
    seconds = [run.seconds for run in runs if run.seconds is not None]
    return [
        method,
        _range([run.delta_parameters for run in runs]),
        tables.format_percent(runs[0]),
        _range([run.head_parameters for run in runs]),
        _range([round(size / 1000) for size in files]) if files else "–",
        f"{fmean(seconds):,.0f}" if seconds else "–",
    ]


def _chosen(method: str, results: tables.Results, names: Sequence[str]) -> list[str]:
    row = [method]
    for column in results.columns:
        if (trial := results.best.get((method, column))) is None:
            row.append("–")
            continue
        strengths = " to ".join(
            f"{strength:g}" for strength in dict.fromkeys(trial.strengths[:1] + trial.strengths[-1:])
        )
        settings = ", ".join(filter(None, (_settings(trial, names), f"strength {strengths}" * bool(strengths))))
        row.append(f"{settings} ({len(trial.runs)} seed{'s' * (len(trial.runs) > 1)})")
    return row


def _tried(results: tables.Results, names: Sequence[str]) -> Iterator[list[str]]:
    for method in results.methods:
        by_settings: dict[str, dict[object, tables.Trial]] = {}
        for column in results.columns:
            for trial in results.tried.get((method, column), ()):
                by_settings.setdefault(_settings(trial, names) or "–", {})[column] = trial
        for text, by_column in by_settings.items():
            trials = [by_column.get(column) for column in results.columns]
            yield [method, text, *(tables.format_trial(trial) if trial else "–" for trial in trials)]


def _settings(trial: tables.Trial, names: Sequence[str]) -> str:
    return tables.format_configuration(trial.configuration, names).replace("learning_rate ", "lr ")


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} – {high:,}"


FIGURES = (draw_scores, draw_gaps, draw_sizes, draw_curves, draw_changes)


def draw(results: tables.Results) -> list[Picture]:
    """Draws every figure for which the records have data."""
    return [picture for kind in FIGURES for picture in kind(results)]
