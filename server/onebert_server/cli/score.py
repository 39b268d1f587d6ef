"""The command `score`."""

from typing import Annotated

import typer

from onebert_server.cli import options


def score(
    data: Annotated[
        list[str],
        typer.Option(
            help="A file (.parquet, .arrow, .csv, .tsv, .jsonl, .json, also .gz, .xlsx, or .txt with a text per line), "
            "a folder of such files, or s3://bucket/key; may be given several times.",
            metavar="FILE",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            help="Folder for the answers, or s3://bucket/prefix: what is scored in it is kept; or one file, which ends "
            "in .csv, .jsonl or .parquet.",
            metavar="FOLDER",
        ),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A delta file, or name, name@3 or name@alias of the store or server; may be given several times.",
            metavar="TASK",
        ),
    ] = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Write the base's own vectors of the texts, too.")] = False,
    text: options.TextColumn = None,
    text_pair: options.TextPairColumn = None,
    keep: Annotated[
        list[str] | None,
        options.INPUT.option(
            "Column that is written beside the answers, '*' for all; default: id, else the number of the row. May be "
            "given several times.",
            metavar="COLUMN",
        ),
    ] = None,
    encoding: options.Encoding = None,
    sheet: options.Sheet = None,
    scores: Annotated[bool, options.OUTPUT.option("Write the score of every label, too.", "--scores")] = False,
    part_rows: Annotated[
        int, options.OUTPUT.option("Rows of a file in the folder, which an interruption costs.", min=1, metavar="N")
    ] = 32768,
    base: options.Base = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    data_dir: options.DataDir = None,
    ray: Annotated[
        str | None,
        options.COMPUTING.option("A Ray cluster that scores the parts, such as auto or HOST:PORT.", metavar="ADDRESS"),
    ] = None,
    url: Annotated[
        str | None,
        options.CONNECTION.option("A server that scores; default: this machine, without one.", "--url", metavar="URL"),
    ] = None,
    api_key: options.ApiKey = None,
) -> None:
    """Classify files of any size with any number of tasks at once, without a server or by one.

    A folder gets Parquet files, one for every N rows, each there whole or not at all, and the same command goes on
    where it was interrupted; one file is there when all of it is. A row without a text has no answer and says why in
    the column error.
    """
    if not (task or vectors):
        raise typer.BadParameter("name a --task, or ask for --vectors")
    if vectors and (ray is not None or url is not None):
        raise typer.BadParameter("--vectors is for scoring on this machine; a server answers at /v1/embeddings")
    options = (task or [], data, out, text, text_pair, keep or [], encoding, scores, part_rows, sheet, vectors)
    if url is not None:
        from onebert_server.score.command import ScoreOptions, run_score_by_server  # noqa: PLC0415

        if any(value is not None for value in (ray, base, dtype, device, data_dir)):
            raise typer.BadParameter("--ray, --base, --dtype, --device and --data-dir are for scoring without --url")
        run_score_by_server(ScoreOptions(*options), url, api_key)
        return
    from onebert_server.engine.memory import importing, keep_freed_memory  # noqa: PLC0415 - see `serve`

    # Must run before any thread starts.
    keep_freed_memory()
    with importing():
        from onebert_server.score.command import ScoreOptions, run_score  # noqa: PLC0415
        from onebert_server.settings import load_settings  # noqa: PLC0415

    settings = load_settings(base=base, data_dir=data_dir, dtype=dtype, device=device)
    run_score(ScoreOptions(*options), settings, ray)
