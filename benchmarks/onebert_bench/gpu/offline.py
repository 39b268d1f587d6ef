"""Makes OneBERT importable where nothing can be installed: from its checkout, with wheels that were brought along.

Imports nothing but Python's own modules, since nothing else may be there yet.
"""

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def complete_path(root: Path, wheels: Path) -> None:
    """Adds what is missing to the path of this process and of its children.

    Args:
        root: of the checkout; its components are added where OneBERT is not installed.
        wheels: folder with wheels, which are unpacked where their distributions are not installed; need not exist.
    """
    found = Path(tempfile.mkdtemp(prefix="onebert-path-"))
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        if not _is_installed(wheel.name.split("-")[0]):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(found)
    added = [str(found)]
    if importlib.util.find_spec("onebert_encoder") is None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        added += [str((root / package).parent) for package in packages]
        _write_distribution(found, project["project"])
    sys.path += added
    importlib.invalidate_caches()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *added]))


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _write_distribution(folder: Path, project: dict[str, object]) -> None:
    """Writes the metadata by which the command `onebert` finds the commands of the components."""
    name, number, groups = project["name"], project["version"], project["entry-points"]
    own = folder / f"{name}-{number}.dist-info"
    own.mkdir()
    (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n", encoding="utf-8")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in groups.items()  # type: ignore[attr-defined]
    ]
    (own / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
