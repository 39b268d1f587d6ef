"""Which nightly tests a change must pass before it lands: groups whose own files have changed since they passed.

A test of `@pytest.mark.nightly(GROUP)` belongs to a group of the table below. `python tests/tiers.py` says of each
group whether it runs before this checkout lands, and why; `python tests/tiers.py record [GROUP …]` notes that groups
passed here, in `nightly.json` beside this file (`make test-nightly` does both). The note is a digest of contents, for
Python without docstrings and comments: it holds in any checkout, whatever its history.
"""

import ast
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
RECORD = TESTS / "nightly.json"
# What every group stands on: the pins, and what CI installs.
PINS = ("constraints.txt", ".ci/run")
SERVER, ENCODER, STORE = "server/onebert_server", "encoder/onebert_encoder", "adapters_store/onebert_store"


@dataclass(frozen=True)
class Group:
    """Nightly tests of one matter, with the rooms and files that they are about."""

    about: str
    own: tuple[str, ...]


GROUPS = {
    "builds": Group(
        "wheels for every processor, the image, the kernels under sanitizers",
        (f"{ENCODER}/compute/kernels", "hatch_build.py", "pyproject.toml", "plugins", "deploy"),
    ),
    "gpu": Group(
        "the kernels for GPUs in Triton's interpreter, every shape",
        (
            *(
                f"{ENCODER}/{own}"
                for own in ("compute/kernels/gpu", "maths/graphs.py", "maths/fixed.py", "maths/gpu_heads.py")
            ),
        ),
    ),
    "programs": Group(
        "other people's programs, installed and asking a server",
        (
            f"{SERVER}/facades",
            "plugins/onebert-semantic-router",
            "plugins/onebert-mcp",
            "tests/clients",
            "tests/environments",
            "docs/recipes",
        ),
    ),
    "document": Group(
        "requests made up from the OpenAPI document",
        (f"{SERVER}/http", f"{SERVER}/facades", f"{SERVER}/contract", "plugins/onebert-semantic-router"),
    ),
    "layouts": Group("what one process answers, through front ends", (f"{SERVER}/remote",)),
    "clusters": Group(
        "Ray clusters that lose processes and nodes",
        (
            "plugins/onebert-ray",
            f"{SERVER}/score/ray_cluster.py",
            "training/onebert_training/sweep",
            f"{STORE}/command/cluster.py",
        ),
    ),
    "exports": Group("ONNX models of every kind of task", ("training/onebert_training/interop",)),
    "browsers": Group("the page in Chromium", (f"{SERVER}/page",)),
    "kills": Group(
        "deaths by kill -9 at every step, and long histories of a registry",
        (f"{STORE}/registry", f"{STORE}/upkeep", f"{STORE}/blobs", f"{SERVER}/score", f"{SERVER}/process.py"),
    ),
    "trainings": Group(
        "many trainings compared: selections, folds, sweeps, runs in one batch",
        ("training/onebert_training", "encoder/onebert_encoder"),
    ),
    "improvements": Group(
        "trainings by the process beside a server: several versions, its death, its bounds",
        ("training/onebert_training/worker.py",),
    ),
    "extensions": Group(
        "types and quick tests without each extension",
        (*(f"{SERVER}/{part}" for part in ("extensions", "installed.py", "hooks.py")), "tests/without.py"),
    ),
    "leaks": Group(
        "memory after ten thousand tasks and 200 MB of texts, an alias that moves under load",
        (f"{SERVER}/engine", f"{SERVER}/versions", f"{SERVER}/score", f"{ENCODER}/maths"),
    ),
    "weights": Group(
        "a real base of twelve layers, whose weights are fetched",
        (
            f"{ENCODER}/base",
            f"{ENCODER}/blocks",
            f"{ENCODER}/compute",
            f"{ENCODER}/maths",
            "benchmarks/onebert_bench/mpnet.py",
        ),
    ),
    "benches": Group(
        "`onebert bench` from its start to its last table",
        ("benchmarks/onebert_bench",),
    ),
    "readers": Group(
        "README, recipes and the code of pages, followed to the letter",
        ("README.md", "docs/guide/python.md", "docs/recipes", "demo", "training/recipes", "api"),
    ),
    "bounds": Group("the lowest versions of what is depended on", ("pyproject.toml",)),
}


@cache
def digest(name: str) -> str:
    """Of the names and contents of a group's files, of its tests, and of the helpers and extensions of these."""
    mark = re.compile(rf'nightly\("{name}"\)|^@{name}$', re.MULTILINE)
    marked = [path for path in TESTS.rglob("*.py") if mark.search(path.read_text("utf-8"))]
    extensions = set().union(*map(extensions_of, marked))
    found = {path for part in (*GROUPS[name].own, *PINS, *extensions) for path in files_of(part)}.union(
        marked, *map(helpers, marked)
    )
    total = hashlib.sha256()
    for path in sorted(found):
        total.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(content(path)).hexdigest()}\n".encode())
    return total.hexdigest()


@cache
def content(path: Path) -> bytes:
    """What a file holds; of Python what is run."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_constant(one)]
    return ast.dump(tree).encode()


def _is_constant(node: ast.stmt) -> bool:
    """A docstring, or the three dots of a body without one."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@cache
def helpers(file: Path) -> frozenset[Path]:
    """The modules of this folder that a file imports, and that those import."""
    imported = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)]
        imported |= {path for name in names if name and (path := TESTS / f"{name}.py").is_file() and path != file}
    return frozenset(imported).union(*map(helpers, imported))


def extensions_of(test: Path) -> set[str]:
    """The folders of the extension beside which a test stands, and of those that it needs."""
    names = set(re.findall(r'needs\("(\w+)"\)', test.read_text("utf-8")))
    if test.parents[1] == TESTS / "extensions":
        names.add(test.parent.name)
    return {f"{SERVER}/extensions/{name}" for name in names}


def files_of(part: str) -> list[Path]:
    """The files of a folder, or one file, as a checkout has them: without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", part]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def passed() -> dict[str, str]:
    """Group -> the digest of the files that it last passed on."""
    return json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}


def changed() -> set[str]:
    """The groups whose files are not those that they last passed on; one that never passed is for the night."""
    return {name for name, noted in passed().items() if name in GROUPS and noted != digest(name)}


def described(chosen: set[str]) -> list[str]:
    """A line for each group: whether it runs, and why."""
    noted, found = passed(), changed()
    lines = []
    for name, group in GROUPS.items():
        why = "its files have changed since it passed" if name in found else "it passed on these files"
        why = why if name in noted else "it has not passed yet"
        lines.append(f"nightly {name} ({group.about}): {'runs' if name in chosen else 'left out'}; {why}")
    return lines


def main(arguments: list[str]) -> None:
    """Says what runs, or notes what passed."""
    if arguments[:1] == ["record"]:
        noted = passed() | {name: digest(name) for name in arguments[1:] or GROUPS}
        RECORD.write_text(json.dumps(noted, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    else:
        print("\n".join(described(changed())))


if __name__ == "__main__":
    main(sys.argv[1:])
