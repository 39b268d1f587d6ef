"""The commands `onebert import` and `onebert export`: their options; the work is in commands.py."""

from pathlib import Path
from typing import Annotated

import typer

from onebert_store.file.manifest import TaskType
from onebert_training.interop.checkpoint.options import CheckpointOptions
from onebert_training.options import AsJson, BaseName, with_options

# torch and other slow libraries are imported inside the functions, so that `onebert --help` stays quick.


@with_options
def import_(
    source: Annotated[
        str, typer.Argument(help="A PEFT adapter folder, or a fine-tuned model: folder or Hub id.", metavar="MODEL")
    ],
    checkpoint: CheckpointOptions,
    out: Annotated[
        Path | None,
        typer.Option(help="The delta file to write; else MODEL's name with .safetensors, here.", show_default=False),
    ] = None,
    base: BaseName = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names of the outputs, in order; else those of MODEL/config.json, or LABEL_0, …"
        ),
    ] = None,
    task_type: Annotated[
        TaskType | None,
        typer.Option(
            help="Else read from MODEL: config.json's problem type, the adapter's task; one output without a problem "
            "type is multi_label."
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=3, help="Longest input in tokens; else the base's longest.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a delta of a PEFT adapter (LoRA, LN tuning, IA3) or of a fine-tuned Hugging Face model.

    Of an adapter the delta gives the answers of PEFT's model; one with parts that a delta cannot hold is refused.

    Of a fine-tuned model, of the base's architecture, biases and LayerNorms are exact and matrices become low-rank, at
    the smallest rank that gives the model's answers to the texts of --data as often as --agree says. Where no rank
    does, or the architecture differs, a delta learns the answers on the texts of --distil, and is refused with the
    number if it agrees less often.

    The base is the one that you name; the model that the files name is never opened.
    """
    from onebert_training.interop.commands import run_import  # noqa: PLC0415
    from onebert_training.interop.heads import TaskOptions  # noqa: PLC0415

    names = [label.strip() for label in labels.split(",")] if labels is not None else None
    run_import(source, out, base, TaskOptions(names, task_type, max_length), checkpoint, as_json)


def export(
    file: Annotated[Path, typer.Argument(help="The delta file.", metavar="FILE")],
    peft: Annotated[
        Path | None,
        typer.Option(help="Write a PEFT adapter folder, for `PeftModel.from_pretrained`.", show_default=False),
    ] = None,
    merged: Annotated[
        Path | None,
        typer.Option(
            help="Write base and delta as one checkpoint, for transformers or sentence-transformers; "
            "default: a folder named like the file.",
            show_default=False,
        ),
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option(help="Write base and delta as one ONNX model with its tokenizer.", show_default=False)
    ] = None,
    base: BaseName = None,
    as_json: AsJson = False,
) -> None:
    """Write a delta as what others load: merged into a Hugging Face checkpoint, a PEFT adapter, or an ONNX model.

    The folder gives the scores of the delta, and the lines that load it are shown. Thresholds and whatever else such a
    folder cannot do by itself are said, and written into its configuration. A delta with parts that it cannot hold is
    refused.
    """
    from onebert_training.interop.commands import run_export  # noqa: PLC0415

    run_export(file, peft, merged, onnx, base, as_json)
