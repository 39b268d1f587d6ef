"""`python tests/without.py NAME [FILE …]`: an extension is optional if types and quick tests pass without it.

It copies the tree, deletes the extension's folder, its line in `installed.py`, its commands in `pyproject.toml`, its
tests and the benchmarks that import it, and runs mypy and pytest there (on these files, or all quick tests). The exit
status is 0 if both pass.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPONENTS = ("adapters_store", "encoder", "training", "server", "demo", "benchmarks", "api", "tests")
PLUGINS = ("plugins/onebert-mcp", "plugins/onebert-ray", "plugins/onebert-semantic-router")
QUICK = ("tests/unit", "tests/extensions", "tests/integration/http/test_http.py")
# The pages describe the server with all its extensions.
OF_ALL = "tests/unit/test_docs_pages.py::test_every_option_and_variable_that_is_named_exists"


def main(name: str, files: Sequence[str]) -> int:
    """Returns 0 if types and tests pass without the extension."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "onebert")
        _copy(copy)
        _delete(copy, name)
        paths = os.pathsep.join(str(copy / path) for path in (*COMPONENTS, *PLUGINS))
        environment = os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{paths}", "MYPYPATH": paths}
        workers = str((os.cpu_count() or 1) + 1)
        options = ("--quiet", "--timeout", "600", "--numprocesses", workers, "--deselect", OF_ALL)
        commands = (
            ["docs/generate.py"],
            ["-m", "mypy"],
            ["-m", "pytest", *options, *(files or QUICK)],
        )
        statuses = [
            subprocess.run([sys.executable, *command], check=False, cwd=copy, env=environment).returncode
            for command in commands
        ]
        return int(any(statuses))


def _copy(copy: Path) -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    # mypy looks only at what has changed since.
    if (cache := ROOT / ".mypy_cache").is_dir():
        shutil.copytree(cache, copy / cache.name)
    # Tests ask git for the files of the tree.
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=copy, check=True)


def _delete(copy: Path, name: str) -> None:
    package = f"onebert_server.extensions.{name}"
    shutil.rmtree(copy / "server" / "onebert_server" / "extensions" / name)
    shutil.rmtree(copy / "tests" / "extensions" / name, ignore_errors=True)
    for script in (copy / "benchmarks").rglob("*.py"):
        if f"{package}." in script.read_text(encoding="utf-8"):
            script.unlink()
    _drop(copy / "server" / "onebert_server" / "installed.py", rf'    "{re.escape(name)}",\n')
    _drop(copy / "pyproject.toml", rf'.*"{re.escape(package)}\..*\n')
    # The installed entry points, which the copy on the path comes before.
    installed = distribution("onebert")
    metadata = copy / f"onebert-{installed.version}.dist-info"
    metadata.mkdir()
    for file in ("METADATA", "entry_points.txt"):
        (metadata / file).write_text(installed.read_text(file) or "", encoding="utf-8")
    _drop(metadata / "entry_points.txt", rf".*= *{re.escape(package)}\..*\n")


def _drop(path: Path, line: str) -> None:
    """Deletes the lines that match."""
    path.write_text(re.sub(line, "", path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
