"""The vector of a text as a folder's sentence-transformers files say: its modules, how it pools, where it cuts."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.base.source import read_json
from onebert_store.errors import MalformedFile

MODULES = "modules.json"
_CUT = "sentence_*_config.json"
# Files beside a model's own that say how it makes vectors.
SENTENCE_FILES = (MODULES, "*_Pooling/config.json", _CUT)
_POOLINGS: dict[str, Literal["mean", "cls"]] = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}


class Vectors(NamedTuple):
    """How a base makes the vector of a text; `max_length` in tokens, special tokens included."""

    pooling: Literal["mean", "cls"]
    normalized: bool
    max_length: int


class Modules(NamedTuple):
    """The modules of a folder, in order: their kinds, such as `Pooling`, and their folders."""

    kinds: list[str]
    paths: list[str]


def unit(vectors: NDArray[Any]) -> NDArray[Any]:
    """Returns vectors [..., numbers] with the length 1, as sentence-transformers' Normalize module makes them."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normalized: NDArray[Any] = vectors / np.maximum(lengths, 1e-12)
    return normalized


def read_modules(folder: Path) -> Modules:
    """Reads `modules.json`; raises MalformedFile, also for a path out of the folder."""
    modules = [module for module in read_json(folder / MODULES, list) if isinstance(module, dict)]
    paths = [str(module.get("path")) for module in modules]
    if any(Path(path).name != path or path in ("", "..") for path in paths[1:]):
        raise MalformedFile(f"{MODULES}: a path leads out of the folder")
    types = [str(module.get("type")) for module in modules]
    # Another package's class may have the name of one of these.
    kinds = [name.rpartition(".")[2] if name.startswith("sentence_transformers.") else name for name in types]
    return Modules(kinds, paths)


def read_pooling(folder: Path) -> tuple[Literal["mean", "cls"] | None, str]:
    """Returns the pooling of a Pooling module's folder, None for one that no head has, and its name in the file."""
    config = read_json(folder / "config.json")
    # One name, or before version 6 a switch for each.
    modes = config.get("pooling_mode", [name for name, on in config.items() if "_mode_" in name and on is True])
    names = [str(mode).removeprefix("pooling_mode_") for mode in (modes if isinstance(modes, list) else [modes])]
    return _POOLINGS.get(names[0]) if len(names) == 1 else None, " and ".join(names) or "nothing"


def read_vectors(folder: Path, most: int) -> Vectors | str:
    """Returns how a base makes vectors, of at most so many tokens, or why it has none."""
    if not (folder / MODULES).is_file():
        return f"it has no {MODULES} of sentence-transformers, which says how vectors are pooled"
    try:
        kinds, paths = read_modules(folder)
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            return f"its modules are {', '.join(kinds) or 'none'}, and not Transformer, Pooling and maybe Normalize"
        pooling, name = read_pooling(folder / paths[1])
        if pooling is None:
            return f"it pools by {name}, and not by the mean of the tokens or the first one"
        cut: dict[str, object] = next((read_json(path) for path in sorted(folder.glob(_CUT))), {})
        if cut.get("do_lower_case"):
            return "its do_lower_case changes texts before the tokenizer reads them"
    except MalformedFile as error:
        return error.detail
    return Vectors(pooling, "Normalize" in kinds, min(read_length(folder) or most, most))


def read_length(folder: Path) -> int | None:
    """Returns where sentence-transformers cuts a text, in tokens; None without such a limit."""
    lengths: list[object] = [read_json(path).get("max_seq_length") for path in sorted(folder.glob(_CUT))[:1]]
    # transformers writes 10^30 for no limit, which is too large a number here.
    with suppress(MalformedFile):
        lengths.append(read_json(folder / "tokenizer_config.json").get("model_max_length"))
    return next((length for length in lengths if type(length) is int and length > 2), None)
