"""The versions that a file names, read from its delta files: their digests, sizes and manifests."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from onebert_server.cli.apply.form import NamedVersion, TaskForm
from onebert_server.cli.apply.key import Key
from onebert_store.errors import OneBertError
from onebert_store.file.manifest import Manifest


class Delta(NamedTuple):
    """A version by its digest; one that the file names by its digest alone has no file and no manifest."""

    key: Key
    digest: str
    file: Path | None = None
    size: int = 0
    manifest: Manifest | None = None


def read_deltas(form: TaskForm) -> dict[str, Delta]:
    """The versions of a task by their names, in the order of the file; raises InvalidInput with a key's path."""
    deltas, names = dict[str, Delta](), dict[str, str]()
    for name, version in form.versions.items():
        delta = deltas[name] = _delta(version)
        if other := names.get(delta.digest):
            raise version.key.wrong(f"it is the same as {other}")
        names[delta.digest] = name
    return deltas


def shared_files(tasks: Iterable[Mapping[str, Delta]]) -> list[str]:
    """A sentence for each file that several tasks name, which may be meant or a slip of the pen."""
    keys = dict[Path, list[str]]()
    for versions in tasks:
        for delta in versions.values():
            if delta.file is not None:
                keys.setdefault(delta.file, []).append(delta.key.path)
    return [f"{' and '.join(paths)} are one file, {file.name}" for file, paths in keys.items() if len(paths) > 1]


def _delta(version: NamedVersion) -> Delta:
    from onebert_store.file.format import load_with_bytes  # noqa: PLC0415

    if version.file is None or not version.file.exists():
        return Delta(version.key, str(version.digest))
    try:
        delta, content = load_with_bytes(version.file)
    except OneBertError as error:
        raise version.key.refused(error) from None
    if version.digest not in (None, delta.digest):
        raise version.key.wrong(f"{version.file.name} has another digest: {delta.digest}")
    return Delta(version.key, delta.digest, version.file, len(content), delta.manifest)
