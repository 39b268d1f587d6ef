"""Writes a folder atomically, with tensors and JSON in it."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from onebert_store.disk import full_disk_is_typed, sync
from onebert_store.errors import InvalidSettings


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder, and renames it to `folder` once its content is synced to disk.

    Raises:
        InvalidSettings: `folder` exists and is not an empty folder, or its parent does not exist.
        StorageFull: the disk refused a write; nothing is left behind.
    """
    check_free(folder)
    with full_disk_is_typed():
        # Not `mkdtemp`, which makes folders private to their owner; this one gets the umask's permissions.
        filling = folder.parent / f".{folder.name[:100]}-{secrets.token_hex(8)}"
        filling.mkdir()
        try:
            yield filling
            for path in filling.rglob("*"):
                sync(path)
            sync(filling)
            # Replaces an empty folder; fails if the folder has received a file meanwhile.
            os.rename(filling, folder)
        except BaseException:
            shutil.rmtree(filling, ignore_errors=True)
            raise
        sync(folder.parent)


def check_free(folder: Path) -> None:
    """Raises InvalidSettings before any work if `whole_folder` could not create the folder."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InvalidSettings(f"{folder} exists; name a new or an empty folder")
    if not folder.parent.is_dir():
        raise InvalidSettings(f"the folder that {folder} would lie in does not exist")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **facts: str) -> None:
    """Writes float32 tensors as safetensors for `from_pretrained`; `facts` go into the header."""
    whole = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in tensors.items()}
    # Not `save_file`: its error for a full disk is not an OSError.
    path.write_bytes(save(whole, metadata={"format": "pt", **facts}))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file with indentation."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
