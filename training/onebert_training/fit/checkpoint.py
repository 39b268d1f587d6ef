"""Checkpoints, from which interrupted runs continue: one safetensors file, replaced whole, with JSON in its header."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from onebert_store.disk import write_whole

_KEY = "onebert-checkpoint"


def checkpoint_path(out: Path) -> Path:
    """The checkpoint file of a run that writes `out`."""
    return out.with_name(f"{out.name}.checkpoint")


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replaces the checkpoint by tensors and JSON facts; raises StorageFull, and the old checkpoint stays."""
    write_whole(path, safetensors.torch.save(dict(tensors), {_KEY: json.dumps(facts)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts of a checkpoint; None if the file is missing or unreadable."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            facts: dict[str, Any] = json.loads(file.metadata()[_KEY])
            if not isinstance(facts, dict):
                return None
            # Tensors in the file are not aligned, and kernels round unaligned tensors differently: clones are aligned.
            return {name: file.get_tensor(name).clone() for name in file.keys()}, facts  # noqa: SIM118 - not a dict
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
        return None
