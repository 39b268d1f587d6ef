"""Writes a base folder of our own from a Hugging Face model, and checks one."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save

from onebert_encoder.adding.golden import Golden, check_golden, plain_golden
from onebert_encoder.base.base import TOKENIZER_FILES, Base, load_folder
from onebert_encoder.base.digest import base_digest
from onebert_encoder.base.folder import FILES, GOLDEN, TOKENIZER, WEIGHTS, Recorded, changed, read_own, sha256_of
from onebert_encoder.base.source import RECORD, bases_folder, find_base, find_foreign, is_own
from onebert_store.disk import check_free, whole_folder
from onebert_store.errors import InvalidInput, InvalidSettings, UnsupportedBase
from onebert_store.file.strict_json import shown

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)


@dataclass(frozen=True)
class Added:
    """A base folder; `name` is for `--base`.

    Attributes:
        error: largest difference from the vectors of transformers.
        new: false if the base was there before.
    """

    name: str
    folder: Path
    base: Base
    error: float
    new: bool


def add_base(source: str, name: str | None = None, out: Path | None = None) -> Added:
    """Writes a base folder: `out`, or one among the added bases by `name` (default: the source's name).

    Raises:
        BaseNotFound, UnsupportedBase: the source cannot be found, read or computed exactly; nothing is written.
        InvalidInput: the source is a base folder already, or the name has forbidden characters.
        InvalidSettings: another base has the name, or `out` is not free.
    """
    local = Path(source).expanduser()
    # By an added base's own name, the Hub's files are read again.
    found = find_base(source) if local.is_dir() else find_foreign(source)
    if is_own(found):
        raise InvalidInput(f"{source} is a base folder already: name it with --base")
    name = name or (found.resolve().name if local.is_dir() else source)
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{shown(name)!r} is no name for a base: letters, digits, _ . - and one /; give a --name")
    base = load_folder(found, source)
    target = out or bases_folder() / name
    if is_own(target):
        return Added(str(out or name), target, base, _error_of_same(name, target, base), new=False)
    check_free_below(target)
    try:
        golden = plain_golden(found, base)
        error = check_golden(base, golden)
    except UnsupportedBase as failed:
        raise UnsupportedBase(f"base {source}: {failed.detail}") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(target) as filling:
        _write(filling, found, name, base, golden)
        check_base(filling)
    return Added(str(out or name), target, base, error, new=True)


def check_free_below(target: Path) -> None:
    """Raises InvalidSettings before slow work if the folder is taken, or lies in another base's folder."""
    if target.parent.is_dir():
        check_free(target)
    if is_own(target.parent):
        raise InvalidSettings(f"{target.parent} is a base folder: no other base can lie in it")


def check_base(folder: Path) -> tuple[Recorded, float]:
    """Reads every file of a base folder and compares digests and golden vectors; raises UnsupportedBase if they differ.

    Returns the record and the largest difference from the golden vectors.
    """
    recorded = read_own(folder)
    if recorded is None:
        raise UnsupportedBase(f"it is no base folder: it has no {RECORD}")
    for name, (_, digest) in recorded.files.items():
        if sha256_of(folder / name) != digest:
            raise UnsupportedBase(changed(name))
    base = load_folder(folder, str(folder))
    if _digest(base) != recorded.digest:
        raise UnsupportedBase(f"its files make another digest than {RECORD} has: add the base again")
    return recorded, check_golden(base, Golden.load(folder / GOLDEN))


def _error_of_same(name: str, target: Path, base: Base) -> float:
    recorded, error = check_base(target)
    if recorded.digest != base.spec.digest:
        raise InvalidSettings(
            f"{name} is another base already, {recorded.digest}: give a --name, or remove the folder {target}"
        )
    return error


def _write(folder: Path, source: Path, name: str, base: Base, golden: Golden) -> None:
    # For `onebert export`, which writes checkpoints with the model's own configuration and tokenizer.
    for copied in ("config.json", *TOKENIZER_FILES):
        if (source / copied).is_file():
            shutil.copyfile(source / copied, folder / copied)
    weights = {name: base.params[name] for name in base.anatomy.weights}
    # Not `save_file`: its error for a full disk is not an OSError.
    (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / TOKENIZER).write_text(base.tokenizer.written, encoding="utf-8")
    (folder / GOLDEN).write_bytes(golden.dumps())
    files = {file: ((folder / file).stat().st_size, sha256_of(folder / file)) for file in FILES}
    recorded = Recorded(name, base.spec.digest, base.config, files)
    (folder / RECORD).write_text(json.dumps(recorded.dumps(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _digest(base: Base) -> str:
    return base_digest(base.config, base.tokenizer.written, {name: base.params[name] for name in base.anatomy.weights})
