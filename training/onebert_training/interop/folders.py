"""Writes tensors and JSON into a folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **facts: str) -> None:
    """Writes float32 tensors as safetensors for `from_pretrained`; `facts` go into the header."""
    copies = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in tensors.items()}
    # Not `save_file`: its error for a full disk is not an OSError.
    path.write_bytes(save(copies, metadata={"format": "pt", **facts}))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file with indentation."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
