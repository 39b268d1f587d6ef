"""A checkout that runs without being installed, on a bare machine.

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
from importlib.metadata import distributions
from pathlib import Path


def import_path(root: Path, folder: Path) -> list[str]:
    """The import path of a checkout; `folder` gets what an installation leaves of it: its name and its commands."""
    facts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project, packages = facts["project"], facts["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    names = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{names}", encoding="utf-8")
    groups = project["entry-points"].items()
    lines = [line for group, names in groups for line in (f"[{group}]", *(f"{n} = {v}" for n, v in names.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return [str(folder), *(str((root / package).parent) for package in packages)]


def complete_path(root: Path, wheels: Path) -> None:
    """Adds what is missing to the path of this process and of its children.

    Args:
        root: of the checkout; its components are added where OneBERT is not installed.
        wheels: folder with wheels, which are unpacked where their distributions are not installed; need not exist.
    """
    unpacked = Path(tempfile.mkdtemp(prefix="onebert-path-"))
    atexit.register(shutil.rmtree, unpacked, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        if not any(distributions(name=wheel.name.split("-")[0])):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(unpacked)
    added = import_path(root, unpacked) if importlib.util.find_spec("onebert_encoder") is None else [str(unpacked)]
    sys.path += added
    importlib.invalidate_caches()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *added]))
