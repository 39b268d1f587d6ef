"""The record of a finished run as JSON values: printed by `--json`, kept by `onebert sweep`, drawn by `report`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from onebert_encoder.base.base import Base
from onebert_encoder.explaining.layers import LAYER
from onebert_store.file.delta import DELTA, OUTPUT_SCALE, SCALE, Array
from onebert_training.fit.keeping import jackknife_score, unbeaten
from onebert_training.fit.reference import watching
from onebert_training.fit.result import Result, to_arrays
from onebert_training.fit.run import Run
from onebert_training.fit.settings import OF_STEPS, REVISION
from onebert_training.heads.baselines import Baselines

# Per prefix of a vector's name, the value that changes nothing.
_UNCHANGED = {DELTA: 0.0, SCALE: 1.0, OUTPUT_SCALE: 1.0}


def make_record(
    run: Run,
    result: Result,
    file_bytes: int | None,
    train_rows: int | None = None,
    experiment: str | None = None,
    baselines: Baselines | None = None,
    selection: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of one run; `file_bytes` is None without a delta file, `train_rows` is the user's limit."""
    measured = result.measured
    result_score = jackknife_score(run, measured) if measured else None
    against = unbeaten(run, measured, result_score, baselines) if measured and result_score and baselines else None
    return {
        "task": run.task,
        "task_type": run.data.task_type,
        "method": run.method.text,
        "base": run.base.spec.name,
        "metric": result.metric,
        "validation": dict(result.validation),
        "folds": result.folds,
        "test": dict(result.test) if result.test is not None else None,
        "train": dict(result.train) if result.train is not None else None,
        "rows": {name: len(split) for name, split in run.data.splits.items()},
        "delta_parameters": run.delta_parameters,
        "head_parameters": run.head_parameters,
        "percent": round(run.percent, 4),
        "learning_rate": None if run.plan.exact else run.learning_rate,
        "head_learning_rate": None if run.plan.exact else run.head_learning_rate,
        "strength": result.strength,
        "start": run.start,
        "contrastive": run.contrastive,
        "seed": run.settings.seed,
        "settings": _settings(run) | {"train_rows": train_rows},
        "data": run.data.facts,
        "experiment": experiment,
        "fingerprint": run.fingerprint,
        "revision": REVISION,
        "steps": result.steps,
        "planned_steps": run.steps,
        "best_step": result.kept_step,
        "resumed_at": result.resumed_at,
        "file_bytes": file_bytes,
        "seconds": round(result.seconds, 3),
        "tokens_per_second": round(result.tokens_per_second),
        "device": str(run.base.device),
        "dtype": str(run.base.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "notes": list(run.notes),
        "warnings": list(result.verdict.warnings),
        "useful": result.verdict.useful and against != "constant",
        "unbeaten": against,
        "blocks": list(result_score.blocks) if result_score else [],
        "yardsticks": baselines and baselines.facts(),
        "contest": dict(selection) if selection else None,
        "history": list(result.history),
        "change": changed_vectors(run.base, to_arrays(result.differences)),
        "calibration": result.delta.manifest.training.get("calibration") if result.delta else None,
        "watching": watching(result.delta.manifest) if result.delta else None,
        "digest": result.delta.digest if result.delta else None,
    }


def _settings(run: Run) -> dict[str, Any]:
    settings = {**asdict(run.settings), "epochs": run.schedule.epochs, "pooling": run.pooling}
    return {name: value for name, value in settings.items() if not (run.plan.exact and name in OF_STEPS)}


def changed_vectors(base: Base, tensors: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Mean absolute change of every trained vector (BitFit, Figure 1: ‖b₀ - b_F‖₁ / dim b); scales change from one."""
    changed = list[dict[str, Any]]()
    for tensor_name, tensor in tensors.items():
        prefix, dot, name = tensor_name.partition(".")
        if prefix + dot not in _UNCHANGED:
            continue
        layer = LAYER.search(name)
        # `s_m3` scales the input of W_m3, `o_m3` its output.
        symbol = base.spec.symbols[name].replace("W_", "o_" if prefix + dot == OUTPUT_SCALE else "s_")
        mean_abs = float(np.abs(tensor.astype(np.float64) - _UNCHANGED[prefix + dot]).mean())
        changed.append({"symbol": symbol, "layer": int(layer[1]) if layer else None, "mean_abs": mean_abs})
    return changed
