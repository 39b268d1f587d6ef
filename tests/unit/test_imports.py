"""The import arrows of docs/architecture.md: who may import whom, read from the source and not from memory."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Component -> the folder it lives in, and the other components it may import.
ARROWS = {
    "onebert_store": ("adapters_store", set()),
    "onebert_encoder": ("encoder", {"onebert_store"}),
    "onebert_training": ("training", {"onebert_store", "onebert_encoder"}),
    "onebert_server": ("server", {"onebert_store", "onebert_encoder"}),
    "onebert_demo": ("demo", {"onebert_store", "onebert_server"}),
    "onebert_bench": ("benchmarks", {"onebert_store", "onebert_encoder", "onebert_training", "onebert_server"}),
}

ROUTES = {"routes_classify", "routes_system", "routes_tasks"}

# Library -> the files that import it.
ONLY_IN = {
    "fastapi": {"app", "problems", "routing", "web", *ROUTES},
    "starlette": {
        "auth",
        "forwarding",
        "engine_server",
        "front_ends",
        "middleware",
        "problems",
        "routes_tasks",
        "routing",
        "web",
    },
    "msgspec": {"front_end", "front_ends", "wire"},
    "sqlalchemy": {"registry", "rows"},
}


def files(package: str) -> list[Path]:
    return sorted((ROOT / ARROWS[package][0] / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", ARROWS)
def test_components_import_only_along_the_arrows(package: str) -> None:
    allowed = ARROWS[package][1] | {package}
    found = {(path.name, name) for path in files(package) for name in imported(path)}
    assert found, f"{package} has no files"
    assert [(file, name) for file, name in found if name.startswith("onebert_") and name not in allowed] == []


def test_the_store_knows_no_torch() -> None:
    code = "import onebert_store.registry, onebert_store.format, onebert_store.cli, sys; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_a_front_end_knows_neither_torch_nor_the_registry() -> None:
    code = (
        "import onebert_server.front_end, sys; print({'torch', 'transformers', 'sqlalchemy', 'httpx'} & {*sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_the_encoder_knows_neither_http_nor_optimizers() -> None:
    for path in files("onebert_encoder"):
        assert not {"fastapi", "starlette", "httpx", "uvicorn"} & set(imported(path)), path.name
        assert "torch.optim" not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_stay_at_their_edge(library: str) -> None:
    users = {path.stem for package in ARROWS for path in files(package) if library in set(imported(path))}
    assert users == ONLY_IN[library]


def test_the_demo_knows_the_server_from_outside() -> None:
    nodes = [node for path in files("onebert_demo") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    of_server = {name for name in names if name.partition(".")[0] == "onebert_server"}
    assert of_server
    assert of_server <= {"onebert_server.client", "onebert_server.process"}


def test_every_file_says_what_it_is_for() -> None:
    for package in ARROWS:
        for path in files(package):
            first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            assert first, f"{path.name} has no docstring"
            assert first.splitlines()[0].strip(), f"{path.name} starts with an empty line"
