"""The report page: tables and pictures in one self-contained HTML file."""

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePath
from statistics import fmean
from urllib.parse import quote

from onebert_training.report import tables
from onebert_training.report.document import document, made, provenance, table, td, th
from onebert_training.report.pictures import Picture


def render(
    sections: Sequence[tuple[tables.Results, Sequence[Picture]]],
    evaluated: Sequence[tuple[str, str]] = (),
    files: Sequence[Sequence[str]] = (),
) -> str:
    """One HTML page with a section per base.

    `evaluated` has name and path of single deltas' pages; `files` has the paths of each run's record and, if any,
    delta. All paths are relative to this page.
    """
    body = "".join(_section(results, pictures) for results, pictures in sections)
    made_of = _made([results for results, _ in sections], files)
    return document("OneBERT report", f"<h1>OneBERT report</h1>{_pages(evaluated)}{body}{made_of}")


def _pages(evaluated: Sequence[tuple[str, str]]) -> str:
    if not evaluated:
        return ""
    links = "".join(f"<li>{_link(file, name)}</li>" for name, file in evaluated)
    return f"<section><h2>The best deltas</h2><ul>{links}</ul></section>"


def _made(found: Iterable[tables.Results], files: Sequence[Sequence[str]]) -> str:
    runs = [run for results in found for method in results.methods for run in results.runs_of(method)]
    data = sorted({(run.data.name, run.data.digest) for run in runs if run.data})
    facts = [("Data", f"{escape(name)}, <code>{escape(digest or 'no digest')}</code>") for name, digest in data]
    return provenance(made(), facts, _files(files))


def _files(files: Sequence[Sequence[str]]) -> str:
    if not files:
        return ""
    links = "".join(f"<li>{', '.join(_link(path, PurePath(path).name) for path in one)}</li>" for one in files)
    return f"<details><summary>Records and deltas</summary><ul>{links}</ul></details>"


def _link(path: str, name: str) -> str:
    # File names are bytes and may not be UTF-8.
    said = os.fsencode(name).decode(errors="replace")
    return f'<a href="{escape(quote(os.fsencode(path)))}">{escape(said)}</a>'


def _section(results: tables.Results, pictures: Iterable[Picture]) -> str:
    runs = [run for method in results.methods for run in results.runs_of(method)]
    experiments = sorted({run.experiment for run in runs if run.experiment})
    note = f"{len(runs)} runs" + (f" of {', '.join(experiments)}" if experiments else "")
    if results.repeated:
        note += f"; {results.repeated} records repeat a run with the same settings and seed and are left out"
    if results.outdated:
        note += f"; {results.outdated} records are of runs that were trained by steps of before, and are left out"
    if results.mixed:
        note += f"; not all runs on {', '.join(results.mixed)} saw the same rows (their digests differ)"
    return (
        f'<section><h2>{escape(results.base)}</h2><p class="note">{escape(note)}.</p>'
        f"<h3>Results</h3>{_results(results)}"
        f"{''.join(map(_figure, pictures))}<h3>Parameters and files</h3>{_parameters(results)}"
        f"<h3>Settings chosen on validation</h3>{_chosen(results)}{_all_tried(results)}</section>"
    )


def _results(results: tables.Results) -> str:
    columns = [*results.columns, *([None] if results.has_average else [])]
    winners = {column: results.winners(column) for column in columns}
    rows = []
    for method in results.methods:
        cells = [th(method), td(tables.format_percent(results.runs_of(method)[0]))]
        texts = [tables.format_entry(results, method, column) for column in columns]
        cells += [td(text, "best" * (method in winners[column])) for column, text in zip(columns, texts, strict=True)]
        rows.append(cells)
    head = [("method", ""), ("% of parameters", ""), *tables.headings(results)]
    shown = table(head + [("average", "")] * results.has_average, rows, f"results on {results.base}")
    return (
        f'{shown}<p class="note">Mean ± standard deviation over the seeds, in per cent (errors in their own unit), '
        "at the settings whose validation mean is best; the best of a column is bold. The share leaves out the "
        "classifier.</p>"
    )


def _parameters(results: tables.Results) -> str:
    rows = []
    for method in results.methods:
        runs = results.runs_of(method)
        files = [run.file_bytes for run in runs if run.file_bytes is not None]
        seconds = [run.seconds for run in runs if run.seconds is not None]
        rows.append(
            [
                th(method),
                td(_range([run.delta_parameters for run in runs])),
                td(tables.format_percent(runs[0])),
                td(_range([run.head_parameters for run in runs])),
                td(_range([round(size / 1000) for size in files]) if files else "–"),
                td(f"{fmean(seconds):,.0f}" if seconds else "–"),
            ]
        )
    head = ["method", "trained", "% of parameters", "classifier", "file, kB", "seconds a run"]
    return table([(title, "") for title in head], rows, f"parameters on {results.base}")


def _chosen(results: tables.Results) -> str:
    names = tables.varied(trial for trials in results.tried.values() for trial in trials)
    rows = []
    for method in results.methods:
        row = [th(method)]
        for column in results.columns:
            trial = results.best.get((method, column))
            seeds = f" ({len(trial.runs)} seed{'s' * (len(trial.runs) > 1)})" if trial else ""
            row.append(td(_found(trial, names) + seeds if trial else "–"))
        rows.append(row)
    return table([("method", ""), *tables.headings(results)], rows, f"settings on {results.base}")


def _all_tried(results: tables.Results) -> str:
    if all(len(trials) == 1 for trials in results.tried.values()):
        return ""
    names = tables.varied(trial for trials in results.tried.values() for trial in trials)
    rows = []
    for method in results.methods:
        found: dict[str, dict[object, tables.Trial]] = {}
        for column in results.columns:
            for trial in results.tried.get((method, column), ()):
                found.setdefault(_settings(trial, names) or "–", {})[column] = trial
        for text, by_column in found.items():
            trials = [by_column.get(column) for column in results.columns]
            rows.append([th(method), td(text), *(td(tables.format_trial(trial) if trial else "–") for trial in trials)])
    name = f"all settings on {results.base}"
    shown = table([("method", ""), ("settings", ""), *tables.headings(results)], rows, name)
    return f"<details><summary>All settings that were tried</summary>{shown}</details>"


def _settings(trial: tables.Trial, names: Sequence[str]) -> str:
    return tables.format_configuration(trial.configuration, names).replace("learning_rate ", "lr ")


def _found(trial: tables.Trial, names: Sequence[str]) -> str:
    """The settings, and the strength found for an exact head."""
    strengths = " to ".join(f"{one:g}" for one in dict.fromkeys(trial.strengths[:1] + trial.strengths[-1:]))
    return ", ".join(filter(None, (_settings(trial, names), f"strength {strengths}" * bool(strengths))))


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} – {high:,}"


def _figure(picture: Picture) -> str:
    panels = "".join(panel.svg() for panel in picture.panels)
    return (
        f'<figure><h3>{escape(picture.title)}</h3><div class="panels">{panels}</div>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )
