"""A folder that appears whole or not at all, and the tensors and JSON in it."""

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
    """Gives a temporary folder to fill, which takes the name `folder` once everything in it is on the disk.

    Raises:
        InvalidSettings: `folder` exists and is not an empty folder, or there is no folder to create it in.
        StorageFull: the disk refused a write; nothing is left behind.
    """
    check_free(folder)
    with full_disk_is_typed():
        # Not `mkdtemp`, whose folders only their owner may read; this folder gets the permissions of the umask.
        filling = folder.parent / f".{folder.name[:100]}-{secrets.token_hex(8)}"
        filling.mkdir()
        try:
            yield filling
            for path in filling.rglob("*"):
                sync(path)
            sync(filling)
            # Replaces an empty folder; fails if somebody has put a file into the folder meanwhile.
            os.rename(filling, folder)
        except BaseException:
            shutil.rmtree(filling, ignore_errors=True)
            raise
        sync(folder.parent)


def check_free(folder: Path) -> None:
    """Refuses a folder that `whole_folder` could not create, before any work is done.

    Raises:
        InvalidSettings: `folder` exists and is not an empty folder, or there is no folder to create it in.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InvalidSettings(f"{folder} exists; name a new or an empty folder")
    if not folder.parent.is_dir():
        raise InvalidSettings(f"the folder that {folder} would lie in does not exist")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **facts: str) -> None:
    """Writes a safetensors file of float32 tensors that `from_pretrained` reads; `facts` go into its header."""
    whole = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in tensors.items()}
    # Not `save_file`, which reports a full disk by an error that is not an OSError.
    path.write_bytes(save(whole, metadata={"format": "pt", **facts}))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, indented for people."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
