"""The command `onebert report`."""

import os
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Records (.json) of runs, or folders of them.", metavar="RUNS")],
    out: Annotated[Path, typer.Option(help="Folder for report.html and the pictures; made if need be.")] = Path(
        "report"
    ),
    markdown: Annotated[bool, typer.Option("--markdown", help="Only print the results table, as Markdown.")] = False,
) -> None:
    """Draw runs as the papers do: tables, scores, curves, sizes and changes, on one page that needs no network.

    The settings of each method are chosen on validation; figures for which the records have no numbers are left out.
    """
    # Imported here because `onebert --help` imports this file.
    from onebert_store.command import console  # noqa: PLC0415
    from onebert_training.report import records  # noqa: PLC0415
    from onebert_training.report.page import draw, render  # noqa: PLC0415
    from onebert_training.report.tables import choose, collect, results_markdown  # noqa: PLC0415

    read = records.record_files(runs)
    runs_read = records.load_records(read)
    for sentence in records.missing(runs):
        console.tell(f"warning: {sentence}: failed, or not yet trained by `onebert sweep`")
    if markdown:
        typer.echo(results_markdown(runs_read), nl=False)
        return
    with console.busy(f"drawing {len(runs_read)} runs"):
        sections = [(results, draw(results)) for results in collect(runs_read)]
        out.mkdir(parents=True, exist_ok=True)
        pictures = [picture for _, drawn in sections for picture in drawn]
        for number, picture in enumerate(pictures, start=1):
            (out / f"{number:02}-{picture.name}.svg").write_text(picture.file(), encoding="utf-8")
        chosen = [run for results, _ in sections for run in choose(results)]
        best = [(run, page) for run in chosen if (page := records.page_of(run, runs))]
        links = [(f"{run.data_name}, {run.metric}: {run.method}", os.path.relpath(page, out)) for run, page in best]
        files = [
            tuple(os.path.relpath(path, out) for path in (file, records.delta_of(record, file)) if path)
            for file, record in zip(read, runs_read, strict=True)
        ]
        (out / "report.html").write_text(render(sections, links, files), encoding="utf-8")
    console.say(f"{len(runs_read)} runs, {len(pictures)} pictures: {out / 'report.html'}")
