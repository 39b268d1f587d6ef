"""What an interrupted run continues from: one safetensors file, written whole, with its facts as JSON."""

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
    """Where the checkpoint of a run that writes `out` lies."""
    return out.with_name(f"{out.name}.checkpoint")


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replaces the checkpoint.

    Raises:
        StorageFull: the disk refused the write; the checkpoint before it is as it was.
    """
    write_whole(path, safetensors.torch.save(dict(tensors), {_KEY: json.dumps(facts)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts; None where there is no checkpoint or it cannot be read."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            facts: dict[str, Any] = json.loads(file.metadata()[_KEY])
            if not isinstance(facts, dict):
                return None
            # Tensors lie unaligned in the file, and kernels round unaligned tensors differently: a copy is aligned.
            return {name: file.get_tensor(name).clone() for name in file.keys()}, facts  # noqa: SIM118 - not a dict
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
        return None
