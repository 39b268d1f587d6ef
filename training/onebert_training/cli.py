"""`check`, `methods`, `evaluate`, `calibrate`, `explain`: their options; the work is in commands/."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from onebert_training.data.options import DataOptions, ReadOptions
from onebert_training.options import DATA, MEND, OUTPUT, AsJson, BaseName, Device, Machine, with_options

# torch and other slow libraries are imported inside the functions, so that `onebert --help` stays quick.

Data = Annotated[
    str,
    DATA.option(
        "A .csv, .tsv, .jsonl, .json (also .gz), .xlsx, .parquet or .arrow file; a folder with such files named "
        f"train, validation and test; or {escape('hf:dataset[/config]')}.",
        show_default=False,
    ),
]
Split = Annotated[
    Literal["test", "validation", "train"] | None,
    DATA.option("Split to measure on; else test, or validation if there is no test. A single file is taken whole."),
]
Unknown = Annotated[
    str | None,
    DATA.option(
        "Texts that none of the labels is for: how well they are told from the others. Column as of --data, "
        "else found by name; a .txt file has a text per line.",
        "--unknown",
        metavar="DATA",
        show_default=False,
    ),
]


@with_options
def check(
    data: Annotated[
        str, typer.Argument(help="What `onebert train` takes as --data.", metavar="DATA", show_default=False)
    ],
    reading: DataOptions,
    max_length: Annotated[
        int, typer.Option(min=3, metavar="N", help="Longest input in tokens that training would read.")
    ] = 128,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels", help="Also list rows whose label may be wrong; the base reads every text once for it."
        ),
    ] = False,
    fold_labels: Annotated[
        bool,
        MEND.option(
            "Write labels that differ in case or blanks alone in their most frequent spelling.", "--fold-labels"
        ),
    ] = False,
    drop_duplicates: Annotated[
        bool, MEND.option("Write rows with the same text and label once: the first of them.", "--drop-duplicates")
    ] = False,
    out: Annotated[
        Path | None, MEND.option("The copy, .csv, .jsonl or .parquet; the rest is said of it.", metavar="FILE")
    ] = None,
    base: BaseName = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Say everything about data before training on it, and whether `onebert train` would refuse it.

    Rows, labels, lengths in tokens, rows that repeat or contradict each other, texts that two splits have, labels with
    few rows, every bad row with its number. The exit status is 1 where training would refuse the data.
    """
    from onebert_training.commands.check import run_check  # noqa: PLC0415
    from onebert_training.commands.mending import Mending  # noqa: PLC0415

    mending = Mending(fold_labels, drop_duplicates, out)
    if not run_check(data, reading, max_length, labels, mending, Machine(base, device=device), as_json):
        raise typer.Exit(1)


def methods() -> None:
    """List the methods: how each is written, and what it trains beside the classifier head."""
    from onebert_store.command import console  # noqa: PLC0415
    from onebert_training.methods.table import METHODS  # noqa: PLC0415

    rows = [(entry.syntax, entry.trains) for entry in METHODS.values()]
    console.show(("method", "trains, beside the classifier head"), rows)
    console.say("Methods add: bitfit+gamma. Which one for what: docs/guide/tasks.md")


@with_options
def evaluate(
    file: Annotated[Path, typer.Argument(help="The delta file.", metavar="FILE")],
    data: Data,
    reading: ReadOptions,
    split: Split = None,
    slices: Annotated[
        list[str] | None,
        DATA.option(
            "Measure by the values of this column, too; may be given several times.", "--slice", metavar="COLUMN"
        ),
    ] = None,
    unknown: Unknown = None,
    report: Annotated[
        Path | None,
        OUTPUT.option(
            "Write a page (.html) with classes, confusion, calibration, slices and the worst rows.", metavar="FILE"
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        OUTPUT.option(
            "Write the rows with what is right and what is answered: .csv, .jsonl or .parquet.", metavar="FILE"
        ),
    ] = None,
    machine: Machine = Machine(),  # noqa: B008 - frozen
    as_json: AsJson = False,
) -> None:
    """Measure a delta file on labeled data, here, without a server.

    The data's labels are matched to the delta's by name. Answers are those of a server, by the file's own thresholds
    and temperature, but for windows: of a text that is longer than the task reads, the beginning is measured.
    """
    from onebert_training.commands.evaluate import run_evaluate  # noqa: PLC0415

    run_evaluate(file, data, split, reading, slices or [], unknown, report, predictions, machine, as_json)


@with_options
def calibrate(
    file: Annotated[Path, typer.Argument(help="The delta file.", metavar="FILE")],
    reading: ReadOptions,
    data: Annotated[
        str | None,
        DATA.option(
            "Labeled rows to fit to, as `onebert evaluate` takes them; --threshold and --positive need none.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=SHARE",
            help="What new rows shall have: fpr=0.01 or precision=0.95 by a threshold for each label (of positive ones "
            "alone, if there are any), coverage=0.9 by abstaining; one of the first two, and the last, may be given "
            "together.",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=SCORE",
            help="The score over which an answer has a label, as spam=0.8; may be given several times.",
        ),
    ] = None,
    positive: Annotated[
        str | None, typer.Option(help="Label that counts as positive, or a,b,c: several.", metavar="LABEL")
    ] = None,
    unknown: Unknown = None,
    split: Annotated[
        Literal["validation", "test"] | None,
        DATA.option("Split to calibrate on; else validation, or test if there is none. A single file is taken whole."),
    ] = None,
    out: Annotated[Path | None, OUTPUT.option("The file to write; else NAME-calibrated.safetensors.")] = None,
    machine: Machine = Machine(),  # noqa: B008 - frozen
    as_json: AsJson = False,
) -> None:
    """Set what a delta decides, and write it as a new file of equal tensors.

    With --data on rows that it was not trained on: a temperature, where the likelihood of rows that it was not fitted
    on gains; with --target thresholds and when to abstain. Every rate comes with the interval in which it lies on as
    many new rows. A target that the rows are too few for is refused. --threshold and --positive are written as stated.
    """
    from onebert_training.commands.calibrate import Rules, run_calibrate  # noqa: PLC0415

    rules = Rules(target or [], threshold or [], positive)
    run_calibrate(file, data, split, reading, rules, unknown, out, machine, as_json)


@with_options
def explain(
    file: Annotated[Path, typer.Argument(help="The delta file.", metavar="FILE", show_default=False)],
    reading: ReadOptions,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="A text, or the two of a pair.", metavar="[TEXT] [SECOND]", show_default=False),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Also say which layers and symbols of the delta the answer is owed to.")
    ] = False,
    data: Annotated[
        str | None,
        DATA.option(
            "In place of a text: labeled rows, as `onebert evaluate` takes them; says what each layer and symbol "
            "of the delta does for them.",
            show_default=False,
        ),
    ] = None,
    split: Split = None,
    rows: Annotated[int, DATA.option("At most so many rows, evenly by label.", min=1, metavar="N")] = 256,
    machine: Machine = Machine(),  # noqa: B008 - frozen
    as_json: AsJson = False,
) -> None:
    """Say what an answer is owed to: which words of a text, which layers and symbols of the delta.

    Words by two ways: how much less the score is without a word, and gradient × input. Layers and symbols by what
    changes when the delta's tensors of one of them are removed. A server explains by words: `onebert classify
    --explain`.
    """
    from onebert_encoder.text.tokens import text_of  # noqa: PLC0415
    from onebert_training.commands.explain import explain_data, explain_text  # noqa: PLC0415

    if data is None and texts is not None and len(texts) <= 2:
        explain_text(file, text_of(*texts), layers, machine, as_json)
    elif data is not None and not texts:
        explain_data(file, data, split, rows, reading, machine, as_json)
    else:
        raise typer.BadParameter("give a TEXT, or the two of a pair, or --data")
