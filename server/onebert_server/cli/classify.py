"""The command `classify`."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from onebert_server.cli.inputs import Asked, from_arguments, from_file, from_lines, located
from onebert_server.cli.options import OUTPUT, URL, ApiKey, Url, connect
from onebert_store.command import console
from onebert_store.errors import InvalidInput

INPUT = "Texts"


def classify(
    task: Annotated[str, typer.Argument(help="name (its live version), name@3 or name@alias.", metavar="TASK")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; default: standard input, a text per line.", metavar="TEXT")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="A table as `onebert train` reads it (.csv, .tsv, .jsonl, also .gz, or .parquet), or .txt with a text "
            "per line.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the text; default: found by its name.", rich_help_panel=INPUT),
    ] = None,
    text_pair: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the second text of a pair.", rich_help_panel=INPUT),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Encoding of the table, such as cp1252; default: what its byte order mark says, or UTF-8.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    pair: Annotated[
        bool,
        typer.Option(
            "--pair",
            help="Inputs are pairs of texts: two arguments each, or a line with a tab between them.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="How many scores to give, best first; of a span task, how many answers, at most 20.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object per input, with its text and its place.", rich_help_panel=OUTPUT
        ),
    ] = False,
    url: Url = URL,
    api_key: ApiKey = None,
) -> None:
    """Classify texts with a task: arguments, a file, or standard input with a text per line.

    Blank lines are skipped. A token task labels every word, or finds entities where its labels are BIO; a span task
    takes pairs of a question and a context. Results are printed while the input is read: an error in a later line loses
    none of the earlier results.
    """
    from onebert_server.cli.results import ResultTable, json_lines  # noqa: PLC0415
    from onebert_server.limits import MAX_ITEMS  # noqa: PLC0415

    asked = _asked(texts, file, (text, text_pair), encoding, pair)
    with connect(url, api_key) as client, console.progress(with_results=True) as bar:
        done = bar.add_task("classifying", total=None, visible=file is not None)
        ref, table = task, None
        # As many as one request takes: with more at a time the first results would be shown later.
        while batch := list(islice(asked, MAX_ITEMS)):
            try:
                results = client.classify(ref, [one.input for one in batch], top_k)
            except InvalidInput as error:
                raise InvalidInput(located(error.detail, batch)) from None
            # One version answers the whole input, even if the alias is moved before its end.
            ref = f"{results[0].task}@{results[0].version}"
            if as_json:
                for line in json_lines(batch, results):
                    typer.echo(line)
            else:
                table = table or ResultTable(batch, results, top_k)
                table.print(batch, results)
            bar.advance(done, len(batch))


def _asked(
    texts: list[str] | None,
    file: Path | None,
    columns: tuple[str | None, str | None],
    encoding: str | None,
    pair: bool,
) -> Iterator[Asked]:
    if texts and file:
        raise typer.BadParameter("texts come as arguments or from --file, not both")
    if file is not None:
        return from_file(file, columns, encoding, pair)
    if any(columns) or encoding:
        raise typer.BadParameter("--text, --text-pair and --encoding say how a --file is read")
    return from_arguments(texts, pair) if texts else from_lines(sys.stdin.buffer, pair)
