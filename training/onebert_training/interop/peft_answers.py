"""Asks PEFT's own model what a delta made of its adapter answers, where `peft` is installed."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

from onebert_encoder.base.config import library_config
from onebert_encoder.base.quiet import quiet
from onebert_encoder.base.source import read_json
from onebert_encoder.text.tokens import Tokens
from onebert_store.errors import InvalidInput
from onebert_store.file.delta import Delta
from onebert_training.interop.checkpoint.finetuned import answer_all, load_model
from onebert_training.interop.heads import kind_of
from onebert_training.interop.peft_folder import MODEL_CONFIG, TASK_CONFIG

# Float32 sums in other orders; a setting that is not read changes far more.
_CLOSE = 1e-2


def compare_with_peft(folder: Path, base_folder: Path, delta: Delta) -> dict[str, Any]:
    """The largest difference of the delta's golden logits from PEFT's, and against which program that was taken.

    Raises:
        InvalidInput: PEFT's model answers otherwise than the delta.
    """
    golden = delta.manifest.golden
    if golden is None or find_spec("peft") is None:
        return {"compared_with": "nothing (peft is not installed)"}
    try:
        model = _load(folder, base_folder, delta)
    except Exception as error:  # an older or a newer release than the folder's may raise anything
        return {"compared_with": f"nothing (peft {version('peft')} does not load the adapter: {type(error).__name__})"}
    theirs = answer_all(model, [Tokens(list(ids), [0] * len(ids)) for ids in golden.input_ids])
    largest = max(
        float(np.abs(np.array(ours) - logits.ravel()).max()) for ours, logits in zip(golden.logits, theirs, strict=True)
    )
    program = f"PeftModel of peft {version('peft')}"
    if largest > _CLOSE * max(1.0, *(float(np.abs(logits).max()) for logits in theirs)):
        raise InvalidInput(
            f"{program} answers otherwise than this reading of the folder: logits differ by {largest:.3g}"
        )
    return {"compared_with": program, "largest_difference": largest}


def _load(folder: Path, base_folder: Path, delta: Delta) -> Any:
    from peft import PeftModel  # noqa: PLC0415 - slow, and need not be installed

    manifest = delta.manifest
    # The adapter's own configuration says what the head reads.
    raw = next((read_json(path) for name in (MODEL_CONFIG, TASK_CONFIG) if (path := folder / name).is_file()), None)
    raw = read_json(base_folder / "config.json") if raw is None else raw
    config = library_config(raw, manifest.base.model_type, num_labels=len(manifest.labels))
    with quiet(), catch_warnings():
        simplefilter("ignore")  # of names that transformers has renamed
        model, _ = load_model(base_folder, config, kind_of(manifest.task_type))
        return PeftModel.from_pretrained(model, str(folder), local_files_only=True).eval()
