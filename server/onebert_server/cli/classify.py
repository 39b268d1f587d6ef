"""The command `classify`."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from onebert_server.cli import options
from onebert_server.cli.inputs import Asked, first_refused, from_arguments, from_file, from_lines, located, rows_of
from onebert_server.cli.results import ResultTable, json_lines
from onebert_server.cli.rows import Reading, Row
from onebert_server.client import Client, TaskResult
from onebert_server.limits import MAX_ITEMS
from onebert_store.command import console
from onebert_store.errors import AnswerNotFinite, InvalidInput, OneBertError, TooLarge


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
        with options.connect(url, api_key) as client:
            _write(client, task, file, out, (reading, pair), wanted)
        return
    asked = _asked(texts, file, reading, pair)
    with options.connect(url, api_key) as client, console.progress(with_results=True) as bar:
        done = bar.add_task("classifying", total=None, visible=file is not None)
        table, cut = None, 0
        for batch, results in _answers(client, task, asked, wanted):
            cut += sum(one.truncated is True for one in results)
            if as_json:
                for line in json_lines(batch, results):
                    typer.echo(line)
            else:
                table = table or ResultTable(batch, results, top_k)
                table.print(batch, results)
            bar.advance(done, len(batch))
    if not as_json:  # in JSON, each object has `truncated`
        _say_cut(cut)


def _say_cut(count: int) -> None:
    if count:
        what = f"{count:,} text{'' if count == 1 else 's'} over the task's longest input"
        console.tell(f"note: of {what} the end was not read; --window reads all of it")


def _write(client: Client, ref: str, file: Path, out: Path, reading: Any, wanted: Mapping[str, Any]) -> None:
    from onebert_server.cli.answers import AnswersFile  # noqa: PLC0415
    from onebert_store.disk import is_read, written_whole  # noqa: PLC0415
    from onebert_store.tables.writers import WRITERS  # noqa: PLC0415

    if out.suffix.lower() not in WRITERS:
        raise typer.BadParameter(f"--out ends in one of {', '.join(WRITERS)}")
    if is_read(out, [file]):
        raise typer.BadParameter("--out is the file that is read")
    with rows_of(file, *reading) as rows, written_whole(out) as made, console.progress() as bar:
        answers = AnswersFile(made, out.name, ref.partition("@")[0], rows)
        done = bar.add_task("classifying rows", total=None)
        waiting = deque[Row]()

        def asked() -> Iterator[Asked]:
            for row in rows:
                waiting.append(row)
                while waiting and waiting[0].input is None:
                    answers.add(waiting.popleft(), None)
                if row.input is not None:
                    yield Asked(row.input, dict(row.place))

        refused: list[str] = []
        for part, results in _answers(client, ref, asked(), wanted, refused):
            for number in range(len(part)):
                answers.add(waiting.popleft(), *((None, refused.pop()) if not results else (results[number],)))
                while waiting and waiting[0].input is None:
                    answers.add(waiting.popleft(), None)
            bar.update(done, completed=answers.count)
        answers.end()
    console.say(f"{answers.count:,} rows in {out}, {answers.without:,} without an answer")
    _say_cut(answers.cut)


def _answers(
    client: Client, ref: str, asked: Iterable[Asked], wanted: Mapping[str, Any], refusals: list[str] | None = None
) -> "Iterator[tuple[Sequence[Asked], list[TaskResult]]]":
    """Batches of inputs with their answers, in order; the answers before a rejected input come before its error.

    `refusals` collects the errors of rejected inputs; each such input is then yielded alone with no result. If it is
    None, an error ends the iteration. An error also ends it if the whole first batch fails and the error names no
    input: then the request's options are wrong.
    """
    version = None
    for batch in _batches(asked):
        waiting = deque([batch])
        while waiting:
            part = waiting.popleft()
            if not part:
                continue
            try:
                results = client.classify(ref, [one.input for one in part], **wanted)
            except (InvalidInput, TooLarge, AnswerNotFinite) as error:
                refused = first_refused(error.detail)
                if len(part) == 1 or refused == 0:
                    says_where = refused is not None or isinstance(error, InvalidInput)
                    error.detail = located(error.detail if says_where else f"input 0: {error.detail}", part)
                    whole = refused is None and wanted and version is None and not any(waiting)
                    if refusals is None or whole:
                        raise
                    refusals.append(error.detail)
                    waiting.appendleft(part[1:])
                    yield part[:1], []
                    continue
                # The error may not name the input: halve the batch to find it.
                good = refused if refused is not None and refused < len(part) else len(part) // 2
                waiting.extendleft((part[good:], part[:good]))
                continue
            # Pin the version: the whole input gets one version, even if the alias moves meanwhile.
            version = results[0].version
            ref = f"{results[0].task}@{version}"
            yield part, results


def _batches(asked: Iterable[Asked]) -> Iterator[list[Asked]]:
    """Batches of one request's size; larger ones would delay the first results.

    The inputs before an unreadable line are yielded before that line's error.
    """
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


def _asked(texts: list[str] | None, file: Path | None, reading: Reading, pair: bool) -> Iterator[Asked]:
    if texts and file:
        raise typer.BadParameter("texts come as arguments or from --file, not both")
    if file is not None:
        return from_file(file, reading, pair)
    if any(reading):
        raise typer.BadParameter("--text, --text-pair, --encoding and --sheet say how a --file is read")
    return from_arguments(texts, pair) if texts else from_lines(sys.stdin.buffer, pair)
