"""The record of a finished run as JSON values: printed by `--json`, kept by `onebert sweep`, drawn by `report`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.base import Base
from onebert_store.delta import DELTA, SCALE
from onebert_training.result import Result
from onebert_training.run import Run


def make_record(
    run: Run, result: Result, file_bytes: int | None, train_rows: int | None = None, experiment: str | None = None
) -> dict[str, Any]:
    """Everything that a reader of results may ask of one run.

    Args:
        run: what was asked.
        result: what came of it.
        file_bytes: of the delta file; None where there is none.
        train_rows: the limit of training rows that was asked for.
        experiment: name of the recipe.
    """
    return {
        "task": run.task,
        "task_type": run.data.task_type,
        "method": run.method.text,
        "base": run.base.spec.name,
        "metric": result.metric,
        "validation": dict(result.validation),
        "test": dict(result.test) if result.test is not None else None,
        "train": dict(result.train) if result.train is not None else None,
        "rows": {name: len(split) for name, split in run.data.splits.items()},
        "delta_parameters": run.delta_parameters,
        "head_parameters": run.head_parameters,
        "percent": round(run.percent, 4),
        "learning_rate": run.learning_rate,
        "seed": run.settings.seed,
        "settings": {**asdict(run.settings), "pooling": run.pooling, "train_rows": train_rows},
        "data": {"name": run.data.name, "digest": run.data.digest},
        "experiment": experiment,
        "fingerprint": run.fingerprint,
        "steps": result.steps,
        "best_step": result.best_step,
        "resumed_at": result.resumed_at,
        "file_bytes": file_bytes,
        "seconds": round(result.seconds, 3),
        "tokens_per_second": round(result.tokens_per_second),
        "device": str(run.base.device),
        "dtype": str(run.base.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "notes": list(run.notes),
        "history": list(result.history),
        "change": changes(run.base, result.differences),
        "digest": result.delta.digest if result.delta else None,
    }


def changes(base: Base, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Mean absolute change of every vector that was trained (BitFit, Figure 1: ‖b₀ - b_F‖₁ / dim b).

    Args:
        base: gives the symbol and layer of each.
        tensors: by the names of the delta file; of a scale it is the distance from one.
    """
    vectors = [(DELTA + p.name, p.symbol, p.layer, 0.0) for p in base.anatomy.parameters]
    vectors += [(SCALE + m.name, m.symbol.replace("W_", "s_"), m.layer, 1.0) for m in base.anatomy.modules]
    return [
        {"symbol": symbol, "layer": layer, "mean_abs": float((tensors[name] - start).abs().mean())}
        for name, symbol, layer, start in vectors
        if name in tensors
    ]
