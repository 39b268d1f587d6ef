"""Writes a base folder of our own from a Hugging Face model, and checks one."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from onebert_encoder.adding.golden import Golden, check_golden, plain_golden
from onebert_encoder.base.base import TOKENIZER_FILES, Base, load_base
from onebert_encoder.base.digest import base_digest
from onebert_encoder.base.folder import FILES, GOLDEN, TOKENIZER, WEIGHTS, Recorded, own_file, read_own, sha256_of
from onebert_encoder.base.sentence import SENTENCE_FILES
from onebert_encoder.base.source import RECORD, bases_folder, changed, find_base, find_foreign, is_own
from onebert_store.disk import check_free, whole_folder
from onebert_store.errors import InvalidInput, InvalidSettings, UnsupportedBase
from onebert_store.file.strict_json import printable

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)


@dataclass(frozen=True)
class Added:
    """A base folder: `name` for `--base`, largest `error` from transformers' vectors, whether it is `new`."""

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
    folder, name = _source_folder(source, name)
    target, named = out or bases_folder() / name, str(out or name)
    with _named(folder, source):
        base = load_base(str(folder))
    if is_own(target):
        with _named(target, named):
            recorded, error = check_base(target)
        if recorded.digest != base.spec.digest:
            raise InvalidSettings(f"{named} is another base, {recorded.digest}: give a --name, or remove {target}")
        return Added(named, target, base, error, new=False)
    # Other programs may call a file base.json.
    if is_own(target.parent) and (target.parent / GOLDEN).is_file():
        raise InvalidSettings(f"{target.parent} is a base folder: no other base can lie in it")
    if target.parent.is_dir():
        check_free(target)
    with _named(folder, source):
        golden = plain_golden(folder, base)
        error = check_golden(base, golden)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(target) as filling:
        _write(filling, folder, name, base, golden)
        check_base(filling)
    return Added(named, target, base, error, new=True)


def check_base(folder: Path) -> tuple[Recorded, float]:
    """Reads a base folder whole: the record, the largest difference of golden vectors; raises UnsupportedBase."""
    recorded = read_own(folder) if is_own(folder) else None
    if recorded is None:
        raise UnsupportedBase(f"it is no base folder: it has no {RECORD}")
    base = load_base(str(folder))
    golden = Golden.loads(own_file(folder, recorded, GOLDEN))
    if base_digest(base.config, base.tokenizer.written, _weights(base)) != recorded.digest:
        raise UnsupportedBase(changed(folder / RECORD))
    return recorded, check_golden(base, golden)


def check_named(name: str) -> tuple[Recorded, float]:
    """`check_base` of the base that `--base` finds by this name."""
    folder = find_base(name)
    with _named(folder, name):
        return check_base(folder)


def _source_folder(source: str, name: str | None) -> tuple[Path, str]:
    local = Path(source).expanduser().is_dir()
    # By the name of an added base, too, the Hub's files are read.
    folder = find_base(source) if local else find_foreign(source)
    if is_own(folder):
        raise InvalidInput(f"{source} is a base folder already: name it with --base")
    name = name or (folder.resolve().name if local else source)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{printable(name)!r} is no name for a base: letters, digits, _ . - and one /; give a --name"
        )
    return folder, name


@contextmanager
def _named(folder: Path, name: str) -> Iterator[None]:
    try:
        yield
    except UnsupportedBase as error:
        raise UnsupportedBase(f"base {name}: {error.detail.removeprefix(f'base {folder}: ')}") from None


def _weights(base: Base) -> dict[str, Tensor]:
    return {name: base.params[name] for name in base.anatomy.weights}


def _write(folder: Path, source: Path, name: str, base: Base, golden: Golden) -> None:
    # For `onebert export`, which writes checkpoints with the model's own configuration and tokenizer, and for vectors.
    for pattern in ("config.json", *TOKENIZER_FILES, *SENTENCE_FILES):
        for path in source.glob(pattern):
            copy = folder / path.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
    # Not `save_file`: its error for a full disk is not an OSError.
    (folder / WEIGHTS).write_bytes(save(_weights(base), metadata={"format": "pt"}))
    (folder / TOKENIZER).write_text(base.tokenizer.written, encoding="utf-8")
    (folder / GOLDEN).write_bytes(golden.dumps())
    files = {file: ((folder / file).stat().st_size, sha256_of(folder / file)) for file in FILES}
    recorded = Recorded(name, base.spec.digest, base.config, files)
    (folder / RECORD).write_text(json.dumps(recorded.dumps(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
