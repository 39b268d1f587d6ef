"""The command `classify`."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onebert_server.cli.inputs import Asked, first_refused, from_arguments, from_file, from_lines, located
from onebert_server.cli.options import (
    INPUT,
    OUTPUT,
    URL,
    ApiKey,
    Encoding,
    TextColumn,
    TextPairColumn,
    Url,
    connect,
)
from onebert_store.command import console
from onebert_store.errors import AnswerNotFinite, InvalidInput, OneBertError, TooLarge

if TYPE_CHECKING:
    from onebert_server.client import Client, TaskResult


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
    text: TextColumn = None,
    text_pair: TextPairColumn = None,
    encoding: Encoding = None,
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

    Blank lines of plain text are skipped; a table with a blank text is refused, as `onebert train` refuses it. A token
    task labels every word, or finds entities where its labels are BIO; a span task takes pairs of a question and a
    context. Results are printed while the input is read: an error in a later line loses none of the earlier results.
    """
    from onebert_server.cli.results import ResultTable, json_lines  # noqa: PLC0415

    asked = _asked(texts, file, (text, text_pair), encoding, pair)
    with connect(url, api_key) as client, console.progress(with_results=True) as bar:
        done = bar.add_task("classifying", total=None, visible=file is not None)
        table = None
        for batch, results in _answers(client, task, asked, top_k):
            if as_json:
                for line in json_lines(batch, results):
                    typer.echo(line)
            else:
                table = table or ResultTable(batch, results, top_k)
                table.print(batch, results)
            bar.advance(done, len(batch))


def _answers(
    client: "Client", ref: str, asked: Iterable[Asked], top_k: int | None
) -> "Iterator[tuple[Sequence[Asked], list[TaskResult]]]":
    """Inputs with their answers; of an input that is refused, the error comes after the answers to all before it."""
    for batch in _batches(asked):
        waiting = deque([batch])
        while waiting:
            part = waiting.popleft()
            try:
                results = client.classify(ref, [one.input for one in part], top_k)
            except (InvalidInput, TooLarge, AnswerNotFinite) as error:
                refused = first_refused(error.detail)
                if len(part) == 1 or refused == 0:
                    says_where = refused is not None or isinstance(error, InvalidInput)
                    error.detail = located(error.detail if says_where else f"input 0: {error.detail}", part)
                    raise
                # Not every refusal says of which input it is: halving finds that input.
                good = refused if refused is not None and refused < len(part) else len(part) // 2
                waiting.extendleft((part[good:], part[:good]))
                continue
            # One version answers the whole input, even if the alias is moved before its end.
            ref = f"{results[0].task}@{results[0].version}"
            yield part, results


def _batches(asked: Iterable[Asked]) -> Iterator[list[Asked]]:
    """As many inputs as one request takes; those before a line that cannot be read come before that line's error.

    With more at a time the first results would be shown later.
    """
    from onebert_server.limits import MAX_ITEMS  # noqa: PLC0415

    batch: list[Asked] = []
    try:
        for one in asked:
            batch.append(one)
            if len(batch) == MAX_ITEMS:
                yield batch
                batch = []
    except OneBertError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


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
