"""The command `classify`."""

import sys
from typing import Annotated

import typer

from onebert_server.cli import options
from onebert_server.cli.classify.results import ResultTable, json_line
from onebert_server.cli.classify.texts import classify_rows, from_arguments, from_lines
from onebert_server.client import Client
from onebert_store.command import console


def classify(
    task: options.Ref,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; default: standard input, a text per line.", metavar="TEXT")
    ] = None,
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
    url: options.Url = options.URL,
    api_key: options.ApiKey = None,
) -> None:
    """Classify texts with a task: arguments, or standard input with a text per line; `onebert score` takes files.

    Blank lines are skipped. A token task labels every word, or finds entities where its labels are BIO; a span task
    takes pairs of a question and a context. Results are printed while the input is read: an error in a later line loses
    none of the earlier results.
    """
    wanted = options.asked_of_answers(top_k, activation, threshold, window, energy, explain)
    rows = from_arguments(texts, pair) if texts else from_lines(sys.stdin.buffer, pair)
    table, cut = None, 0
    with Client(url, api_key) as client:
        for part, results in classify_rows(client, task, rows, wanted):
            cut += sum(result.truncated is True for result in results)
            if as_json:
                for row, result in zip(part, results, strict=True):
                    typer.echo(json_line(row, result))
            else:
                table = table or ResultTable(part, results, top_k)
                table.print(part, results)
    if cut and not as_json:  # in JSON, each object has `truncated`
        texts_cut = f"{cut:,} text{'' if cut == 1 else 's'} over the task's longest input"
        console.tell(f"note: of {texts_cut} the end was not read; --window reads all of it")
