"""The commands `onebert train` and `onebert evaluate`: their options; the work is in commands.py."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

# torch and its friends load inside the functions, so that `onebert --help` stays quick.

Data = Annotated[
    str,
    typer.Option(
        help="A .csv, .tsv, .jsonl (also .gz) or .parquet file; a folder with one such file per split named train, "
        f"validation and test (and labels.json, if label cells are indices); or {escape('hf:dataset[/config]')}.",
        show_default=False,
    ),
]
TextColumn = Annotated[str | None, typer.Option("--text", help="Column of the text; else found by name.")]
PairColumn = Annotated[str | None, typer.Option("--text-pair", help="Column of the second text of a pair.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="Column of the label; else found by name.")]
BaseName = Annotated[str | None, typer.Option("--base", help="Hub id or folder; else all-MiniLM-L6-v2.")]
Dtype = Annotated[
    Literal["float32", "bfloat16"],
    typer.Option(help="What the forward pass computes in; the delta itself is float32 always."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; else cuda where there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Metric = Annotated[
    str | None, typer.Option(help="Metric that decides, such as accuracy, macro_f1, f1, matthews, micro_f1, pearson.")
]


def train(
    task: Annotated[str, typer.Option(help="Name of the task; a-z, 0-9, '.', '_', '-'.", show_default=False)],
    data: Data,
    method: Annotated[
        str, typer.Option(help="What is trained beside the classifier head; `onebert methods` lists them.")
    ] = "bitfit",
    base: BaseName = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; else TASK.safetensors (full: a folder, TASK).")
    ] = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    task_type: Annotated[
        Literal["single_label", "multi_label", "regression", "token", "span"] | None,
        typer.Option(
            help="Else from labels.json, the columns or the labels: a|b is multi_label, fractions regression."
        ),
    ] = None,
    metric: Metric = None,
    pooling: Annotated[
        Literal["cls", "mean", "pooler"] | None,
        typer.Option(
            help="What the head reads: the first token, the mean of all (the default), or the base's pooler; "
            "tasks on tokens and spans read every token."
        ),
    ] = None,
    max_length: Annotated[int, typer.Option(min=3, help="Longest input in tokens; the rest is cut off.")] = 128,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows, at most.")] = 10,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps, at most.")] = None,
    train_rows: Annotated[
        int | None, typer.Option(min=2, help="Use only so many training rows, drawn evenly over the labels.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Training rows per step.")] = 16,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Peak learning rate; else the method's own, which falls with the width of the base.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="An equal seed repeats a run, to the byte on a CPU.")
    ] = 0,
    evals_per_epoch: Annotated[int, typer.Option(min=1, help="Evaluations on the validation split per epoch.")] = 4,
    patience: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Stop after so many evaluations without a better metric or loss; else two epochs' worth; 0 never.",
        ),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train a delta: everything a task adds to the frozen base, in one small file.

    The best evaluation on the validation split is kept.
    An interrupted run continues when the same command is given again.
    Loss and metrics go to standard error, the result to standard output.
    """
    from onebert_training.cells import Columns  # noqa: PLC0415
    from onebert_training.commands import run_train  # noqa: PLC0415
    from onebert_training.run import Settings  # noqa: PLC0415

    settings = Settings(
        method=method,
        pooling=pooling,
        max_length=max_length,
        epochs=epochs,
        max_steps=max_steps,
        batch_size=batch_size,
        learning_rate=lr,
        seed=seed,
        evals_per_epoch=evals_per_epoch,
        patience=patience,
        metric=metric,
    )
    columns = Columns(text, text_pair, label)
    run_train(task, data, columns, task_type, train_rows, base, dtype, device, settings, out, as_json)


def methods() -> None:
    """List the methods: how each is written, and what it trains beside the classifier head."""
    from rich.table import Table  # noqa: PLC0415

    from onebert_store import console  # noqa: PLC0415
    from onebert_training.methods import METHODS  # noqa: PLC0415

    table = Table(title="Methods; they add with +")
    table.add_column("method", overflow="fold")
    table.add_column("trains, beside the classifier head")
    for entry in METHODS.values():
        table.add_row(entry.syntax, entry.trains)
    console.out.print(table)


def evaluate(
    file: Annotated[Path, typer.Argument(help="The delta file.", metavar="FILE")],
    data: Data,
    split: Annotated[
        Literal["test", "validation", "train"] | None,
        typer.Option(help="Else test, or validation where there is no test; a single file is taken whole."),
    ] = None,
    base: BaseName = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    dtype: Dtype = "float32",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure a delta file on labeled data, here, without a server.

    The data's labels are matched to the delta's by name.
    """
    from onebert_training.cells import Columns  # noqa: PLC0415
    from onebert_training.commands import run_evaluate  # noqa: PLC0415

    run_evaluate(file, data, split, Columns(text, text_pair, label), base, dtype, device, as_json)
