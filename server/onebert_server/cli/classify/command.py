"""The command `classify`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from onebert_server.cli import options
from onebert_server.cli.classify.remote import Remote
from onebert_server.cli.classify.results import ResultTable, json_line, write_answers
from onebert_server.cli.classify.rows import Reading, Row, from_arguments, from_file, from_lines, open_table
from onebert_server.client import Client, TaskResult
from onebert_store.command import console
from onebert_store.disk import is_read, written_whole
from onebert_store.tables.writers import WRITERS


def classify(
    task: options.Ref,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; default: standard input, a text per line.", metavar="TEXT")
    ] = None,
    file: Annotated[
        Path | None,
        options.INPUT.option(
            "A table as `onebert train` reads it (.csv, .tsv, .jsonl, .json, also .gz, .xlsx, .parquet, .arrow), "
            "or .txt with a text per line.",
            "--file",
            metavar="FILE",
        ),
    ] = None,
    text: options.TextColumn = None,
    text_pair: options.TextPairColumn = None,
    encoding: options.Encoding = None,
    sheet: options.Sheet = None,
    pair: Annotated[
        bool,
        options.INPUT.option(
            "Inputs are pairs of texts: two arguments each, or a line with a tab between them.", "--pair"
        ),
    ] = False,
    top_k: options.TopK = None,
    activation: options.ScoresBy = None,
    threshold: options.Threshold = None,
    window: options.Windows = None,
    energy: options.Energy = False,
    explain: Annotated[
        bool,
        options.ANSWER.option(
            "Say which words each answer is owed to: how much less its score is without them.", "--explain"
        ),
    ] = False,
    as_json: Annotated[
        bool, options.OUTPUT.option("Print one JSON object per input, with its text and its place.", "--json")
    ] = False,
    out: Annotated[
        Path | None,
        options.OUTPUT.option(
            "Write the rows of --file with their answers: .csv, .jsonl or .parquet, there when all of it is.",
            metavar="FILE",
        ),
    ] = None,
    url: options.Url = options.URL,
    api_key: options.ApiKey = None,
) -> None:
    """Classify texts with a task: arguments, a file, or standard input with a text per line.

    Blank lines of plain text are skipped; a table with a blank text is refused, as `onebert train` refuses it. A token
    task labels every word, or finds entities where its labels are BIO; a span task takes pairs of a question and a
    context. Results are printed while the input is read: an error in a later line loses none of the earlier results.

    With --out a row without a text, or with one that the task does not take, has no answer and says why in the column
    TASK_error.
    """
    wanted = options.asked_of_answers(top_k, activation, threshold, window, energy, explain)
    reading = Reading(text, text_pair, encoding, sheet)
    if out is not None:
        if file is None or texts or as_json or explain:
            raise typer.BadParameter("--out goes with --file, and without --json and --explain")
        with Client(url, api_key) as client:
            _write(Remote(client, task, wanted, go_on=True), task, file, out, reading, pair)
        return
    rows = _rows(texts, file, reading, pair)
    with Client(url, api_key) as client, console.progress(with_results=True) as bar:
        done = bar.add_task("classifying", total=None, visible=file is not None)
        table, cut = None, 0
        for asked, answers in Remote(client, task, wanted).windows(rows):
            results = [one for one in answers if isinstance(one, TaskResult)]
            cut += sum(one.truncated is True for one in results)
            if as_json:
                for row, result in zip(asked, results, strict=True):
                    typer.echo(json_line(row, result))
            else:
                table = table or ResultTable(asked, results, top_k)
                table.print(asked, results)
            bar.advance(done, len(asked))
    if not as_json:  # in JSON, each object has `truncated`
        _say_cut(cut)


def _say_cut(count: int) -> None:
    if count:
        what = f"{count:,} text{'' if count == 1 else 's'} over the task's longest input"
        console.tell(f"note: of {what} the end was not read; --window reads all of it")


def _write(remote: Remote, ref: str, file: Path, out: Path, reading: Reading, pair: bool) -> None:
    if out.suffix.lower() not in WRITERS:
        raise typer.BadParameter(f"--out ends in one of {', '.join(WRITERS)}")
    if is_read(out, [file]):
        raise typer.BadParameter("--out is the file that is read")
    with open_table(file, reading, pair) as table, written_whole(out) as made, console.progress() as bar:
        windows = remote.windows(table.rows)
        answered = (one for rows, answers in windows for one in zip(rows, answers, strict=True))
        counted = bar.track(answered, description="classifying rows")
        written = write_answers(made, out.name, ref.partition("@")[0], table, counted)
    console.say(f"{written['rows']:,} rows in {out}, {written['without']:,} without an answer")
    _say_cut(written["cut"])


def _rows(texts: list[str] | None, file: Path | None, reading: Reading, pair: bool) -> Iterator[Row]:
    if texts and file:
        raise typer.BadParameter("texts come as arguments or from --file, not both")
    if file is not None:
        return from_file(file, reading, pair)
    if any(reading):
        raise typer.BadParameter("--text, --text-pair, --encoding and --sheet say how a --file is read")
    return from_arguments(texts, pair) if texts else from_lines(sys.stdin.buffer, pair)
