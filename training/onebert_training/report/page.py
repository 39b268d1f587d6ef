"""The report page: tables and pictures in one HTML file that loads no other."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from statistics import fmean

from onebert_training.report.style import Picture
from onebert_training.report.tables import (
    Results,
    Trial,
    format_configuration,
    format_entry,
    format_percent,
    format_trial,
    headings,
    varied,
)

# Forbids scripts and loading, so that text from somebody else's record can do no harm.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .8rem 0; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #444; vertical-align: bottom; }
td.best { font-weight: 700; }
small { color: #666; font-weight: 400; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; height: auto; }
figcaption, p.note { color: #555; max-width: 60rem; }
"""


def render(sections: Sequence[tuple[Results, Sequence[Picture]]]) -> str:
    """One HTML page: a section for each base."""
    body = "".join(_section(results, pictures) for results, pictures in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>OneBERT report</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><style>{STYLE}</style></head>'
        f"<body><h1>OneBERT report</h1>{body}</body></html>\n"
    )


def _section(results: Results, pictures: Iterable[Picture]) -> str:
    runs = [run for method in results.methods for run in results.runs_of(method)]
    experiments = sorted({run.experiment for run in runs if run.experiment})
    note = f"{len(runs)} runs" + (f" of {', '.join(experiments)}" if experiments else "")
    if results.repeated:
        note += f"; {results.repeated} records repeat a run with the same settings and seed and are left out"
    digests: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        key = (run.data_name, str(sorted(run.rows.items())))
        digests.setdefault(key, set()).add(run.data.digest if run.data else "")
    if doubtful := sorted({name for (name, _), found in digests.items() if len(found) > 1}):
        note += f"; not all runs on {', '.join(doubtful)} saw the same rows (their digests differ)"
    return (
        f'<section><h2>{escape(results.base)}</h2><p class="note">{escape(note)}.</p>'
        f"<h3>Results</h3>{_results(results)}<h3>Parameters and files</h3>{_parameters(results)}"
        f"<h3>Settings chosen on validation</h3>{_chosen(results)}{_all_tried(results)}"
        f"{''.join(map(_figure, pictures))}</section>"
    )


def _results(results: Results) -> str:
    columns = [*results.columns, *([None] if results.has_average else [])]
    winners = {column: results.winners(column) for column in columns}
    rows = []
    for method in results.methods:
        cells = [_td(method), _td(format_percent(results.runs_of(method)[0]))]
        cells += [_td(format_entry(results, method, column), method in winners[column]) for column in columns]
        rows.append(cells)
    average = [("average", "")] if results.has_average else []
    table = _table([("method", ""), ("% of parameters", ""), *headings(results), *average], rows)
    return (
        f'{table}<p class="note">Mean ± standard deviation over the seeds, in per cent (errors in their own unit), '
        "at the settings whose validation mean is best; the best of a column is bold. The share leaves out the "
        "classifier.</p>"
    )


def _parameters(results: Results) -> str:
    rows = []
    for method in results.methods:
        runs = results.runs_of(method)
        files = [run.file_bytes for run in runs if run.file_bytes is not None]
        seconds = [run.seconds for run in runs if run.seconds is not None]
        rows.append(
            [
                _td(method),
                _td(_range([run.delta_parameters for run in runs])),
                _td(format_percent(runs[0])),
                _td(_range([run.head_parameters for run in runs])),
                _td(_range([round(size / 1000) for size in files]) if files else "–"),
                _td(f"{fmean(seconds):,.0f}" if seconds else "–"),
            ]
        )
    head = ["method", "trained", "% of parameters", "classifier", "file, kB", "seconds a run"]
    return _table([(title, "") for title in head], rows)


def _chosen(results: Results) -> str:
    names = varied(trial for trials in results.tried.values() for trial in trials)
    rows = []
    for method in results.methods:
        row = [_td(method)]
        for column in results.columns:
            trial = results.best.get((method, column))
            seeds = f" ({len(trial.runs)} seed{'s' * (len(trial.runs) > 1)})" if trial else ""
            row.append(_td(_settings(trial, names) + seeds if trial else "–"))
        rows.append(row)
    return _table([("method", ""), *headings(results)], rows)


def _all_tried(results: Results) -> str:
    """A table of all configurations, if there is more than one."""
    if all(len(trials) == 1 for trials in results.tried.values()):
        return ""
    names = varied(trial for trials in results.tried.values() for trial in trials)
    rows = []
    for method in results.methods:
        found: dict[str, dict[object, Trial]] = {}
        for column in results.columns:
            for trial in results.tried.get((method, column), ()):
                found.setdefault(_settings(trial, names), {})[column] = trial
        for text, by_column in found.items():
            trials = [by_column.get(column) for column in results.columns]
            rows.append([_td(method), _td(text), *(_td(format_trial(trial) if trial else "–") for trial in trials)])
    table = _table([("method", ""), ("settings", ""), *headings(results)], rows)
    return f"<details><summary>All settings that were tried</summary>{table}</details>"


def _settings(trial: Trial, names: Sequence[str]) -> str:
    return format_configuration(trial.configuration, names).replace("learning_rate ", "lr ")


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} – {high:,}"


def _figure(picture: Picture) -> str:
    return (
        f'<figure><h3>{escape(picture.title)}</h3><img alt="{escape(picture.title)}" '
        f'src="data:image/png;base64,{b64encode(picture.png).decode()}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _td(text: str, best: bool = False) -> str:
    kind = ' class="best"' if best else ""
    return f"<td{kind}>{escape(text)}</td>"


def _table(head: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(title)}<br><small>{escape(sub)}</small></th>" for title, sub in head)
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
