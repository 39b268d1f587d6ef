"""`onebert import` and `onebert export`: load, convert, write, show; and the Python that loads what was exported."""

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from onebert_encoder.answering.scores import own_activation
from onebert_encoder.base.base import load_base
from onebert_encoder.base.source import DEFAULT_BASE, find_base, read_json
from onebert_encoder.maths.fold import to_tensors
from onebert_store.command import console
from onebert_store.disk import check_free, check_writable
from onebert_store.errors import BaseNotFound, InvalidInput, InvalidSettings
from onebert_store.file.decision import Activation
from onebert_store.file.delta import require_fit
from onebert_store.file.format import load, save
from onebert_store.file.manifest import SIAMESE, Manifest
from onebert_training.fit.loop import Progress
from onebert_training.fit.run import Run
from onebert_training.interop.checkpoint.importing import import_checkpoint
from onebert_training.interop.checkpoint.options import CheckpointOptions
from onebert_training.interop.heads import AUTO_CLASSES, TaskOptions, split_head
from onebert_training.interop.merged import left_to_callers, merge, without_temperature, write_checkpoint
from onebert_training.interop.onnx_export import require_onnx, write_onnx
from onebert_training.interop.peft_answers import compare_with_peft
from onebert_training.interop.peft_export import export_adapter
from onebert_training.interop.peft_folder import CONFIG, MODEL_CONFIG
from onebert_training.interop.peft_import import import_adapter
from onebert_training.interop.sentence import LOADS_WITH


def run_import(
    source: str,
    out: Path | None,
    base: str | None,
    task_options: TaskOptions,
    options: CheckpointOptions,
    as_json: bool,
) -> None:
    """Converts a PEFT folder or a fine-tuned checkpoint to a delta file, and shows a summary."""
    # The last part of a folder or of a Hub id.
    out = out or Path(f"{Path(source).expanduser().resolve().name}.safetensors")
    check_writable("--out", out)
    console.note_replaced(out, "when the import is done")
    try:
        folder = find_base(source)
    except BaseNotFound:
        raise InvalidInput(
            f"{source} is no folder, not in the Hugging Face cache, and could not be fetched from the Hub"
        ) from None
    is_model = _is_checkpoint(folder, options)
    agreed: dict[str, Any] = {}
    with console.busy("loading the base and converting"):
        loaded = load_base(base)
        if is_model:
            name = folder.resolve().name if Path(source).is_dir() else source
            delta, agreed = import_checkpoint(folder, name, loaded, options, task_options, out, _tell_progress)
        else:
            config = find_base(base or DEFAULT_BASE) / "config.json"
            delta = import_adapter(folder, loaded, task_options, read_json(config) if config.is_file() else None)
            agreed = compare_with_peft(folder, config.parent, delta)
    save(out, delta)
    manifest = delta.manifest
    record = {
        "out": str(out),
        "digest": delta.digest,
        "base": manifest.base.name,
        **manifest.model_dump(include={"method", "task_type", "labels", "pooling", "max_length"}),
        "tensors": len(delta.tensors),
        "file_bytes": out.stat().st_size,
        "warnings": list(manifest.training["warnings"]),
    }
    _show(record | agreed, as_json)
    if not as_json:
        named = "" if "task" in manifest.training else " --task NAME"
        console.say(f"next: onebert push {quote(str(out))}{named}")


def _tell_progress(run: Run, progress: Progress) -> None:
    if progress.note is not None:
        console.tell(f"note: {progress.note}")
    if progress.validation is not None:
        score = f"{run.metric} {progress.validation[run.metric]:.4f} of the checkpoint's answers"
        console.tell(f"step {progress.step:,} of {progress.steps:,} by {run.settings.method}: {score} on validation")


def _is_checkpoint(folder: Path, options: CheckpointOptions) -> bool:
    """Whether the folder holds a whole model, not a PEFT adapter; rejects options that do not fit."""
    adapter = (folder / CONFIG).exists()
    is_model = not adapter and (folder / MODEL_CONFIG).exists()
    if is_model and options.data is None and options.distil is None:
        raise InvalidSettings(
            "the folder holds a whole model, whose delta is as large as its answers need: give texts with --data"
        )
    for option, value in (("--data", options.data), ("--distil", options.distil)):
        if adapter and value is not None:
            raise InvalidSettings(f"{option} is for a whole model; what an adapter holds, its delta holds exactly")
    return is_model


def run_export(
    file: Path, peft: Path | None, merged: Path | None, onnx: Path | None, base: str | None, as_json: bool
) -> None:
    """Converts a delta file to a folder, and shows how to load it."""
    named = [folder for folder in (peft, merged, onnx) if folder is not None]
    if len(named) > 1:
        raise InvalidSettings("name one folder, with --merged, --peft or --onnx")
    folder = named[0] if named else file.with_suffix("")
    check_free(folder)
    if onnx is not None:
        require_onnx()
    delta = load(file)
    if delta.manifest.pooling == SIAMESE:
        raise InvalidInput(
            "no class of Hugging Face's libraries compares two texts as this task does: onebert serve does"
        )
    record: dict[str, Any] = {"out": str(folder), "digest": delta.digest}
    with console.busy("loading the base and converting"):
        loaded = load_base(base)
        require_fit(delta, loaded.spec)
        delta = without_temperature(delta)
        if peft is not None:
            record |= export_adapter(folder, delta, loaded, base)
        else:
            encoder, head = split_head(to_tensors(delta, loaded))
            model = folder, base, merge(loaded, encoder), head, delta.manifest
            if onnx is not None:
                write_onnx(*model)
                record["loads_with"] = ONNX
            else:
                record["loads_with"] = write_checkpoint(*model)
    if rules := left_to_callers(delta.manifest):
        record["left_to_callers"] = rules
    if peft is None:
        record["example"] = example(record["loads_with"], folder, delta.manifest)
    _show(record, as_json)


def _show(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.print_json(record)
        return
    for key, value in record.items():
        if value not in (None, []) and key not in ("example", "left_to_callers", "warnings"):
            console.say(f"{key.replace('_', ' ')}: {_text(value)}")
    for warning in record.get("warnings", ()):
        console.say(f"note: {warning}")
    if rules := record.get("left_to_callers"):
        listing = ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in rules.items())
        console.say(f"note: left to callers of the model, and written into its configuration: {listing}")
    if "example" in record:
        console.say(f"\n{record['example']}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) else str(round(value, 6) if isinstance(value, float) else value)


ONNX = "onnxruntime"

_PIPELINE = """\
from transformers import pipeline

ask = pipeline("{task}", {folder!r}, {options})
print(ask({text!r}))"""

_SENTENCE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({folder!r}, local_files_only=True)
logits = model.encode([{text}], convert_to_tensor=True)
print(model[0].model.config.id2label, {scores})"""

_SPAN = """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({folder!r})
tokens = tokenizer({text}, truncation="only_second", return_tensors="pt")
logits = AutoModelForQuestionAnswering.from_pretrained({folder!r})(**tokens)
first, last = logits.start_logits.argmax(), logits.end_logits.argmax()
print(tokenizer.decode(tokens["input_ids"][0, first : last + 1]))"""

_ONNX = """\
from onnxruntime import InferenceSession
from transformers import AutoTokenizer

tokens = AutoTokenizer.from_pretrained({folder!r})({text}, truncation={truncation}, return_tensors="np")
session = InferenceSession({model!r})
print(session.run(None, {{each.name: tokens[each.name] for each in session.get_inputs()}}))"""

_SCORES: Mapping[Activation, str] = {"softmax": "logits.softmax(-1)", "sigmoid": "logits.sigmoid()", "none": "logits"}


def example(loads_with: str, folder: Path, manifest: Manifest) -> str:
    """Python that loads the exported folder with a transformers class, `SentenceTransformer` or `onnxruntime`."""
    text, span = repr("The soup was cold."), manifest.task_type == "span"
    if span:
        text = repr("What was cold?") + ", " + text
    where = {"folder": str(folder), "text": text}
    if loads_with == ONNX:
        truncation = repr("only_second") if span else "True"
        return _ONNX.format(**where, model=str(folder / "model.onnx"), truncation=truncation)
    if loads_with == LOADS_WITH:
        return _SENTENCE.format(**where, scores=_SCORES[own_activation(manifest)])
    if span:
        return _SPAN.format(**where)
    token = loads_with == AUTO_CLASSES["token"]
    task, options = (
        ("token-classification", 'aggregation_strategy="simple"')
        if token
        else ("text-classification", "top_k=None, truncation=True")
    )
    return _PIPELINE.format(task=task, folder=str(folder), options=options, text="The soup was cold.")
