"""The import arrows of docs/architecture.md: who may import whom, read from the source and not from memory."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from onebert_server.installed import INSTALLED

ROOT = Path(__file__).parents[2]

# Component -> the folder it lives in, and the other components it may import.
ARROWS = {
    "onebert_store": ("adapters_store", set()),
    "onebert_encoder": ("encoder", {"onebert_store"}),
    "onebert_training": ("training", {"onebert_store", "onebert_encoder"}),
    "onebert_server": ("server", {"onebert_store", "onebert_encoder"}),
    "onebert_demo": ("demo", {"onebert_store", "onebert_server"}),
    "onebert_bench": ("benchmarks", {"onebert_store", "onebert_encoder", "onebert_training", "onebert_server"}),
    "onebert_semantic_router": (
        "plugins/onebert-semantic-router",
        {"onebert_store", "onebert_encoder", "onebert_server"},
    ),
    "onebert_mcp": ("plugins/onebert-mcp", {"onebert_store", "onebert_encoder", "onebert_server"}),
    "onebert_ray": ("plugins/onebert-ray", {"onebert_store", "onebert_encoder", "onebert_server"}),
    "onebert": ("api", {"onebert_store", "onebert_encoder", "onebert_training", "onebert_server"}),
}

# Component -> its rooms from the top down. A room may import from those below it, never from one beside it or above.
# A room is a folder, or a file at the component's root; names that no tuple lists are below all others.
ROOMS: dict[str, tuple[set[str], ...]] = {
    "onebert_store": ({"command"}, {"upkeep"}, {"samples"}, {"registry", "tables"}, {"file", "blobs"}),
    "onebert_encoder": (
        {"explaining", "adding"},
        {"maths"},
        {"base"},
        {"blocks"},
        {"compute", "answering"},
        {"layout", "text"},
    ),
    "onebert_training": (
        {"cli"},
        {"commands", "sweep", "worker"},
        {"prepared", "names"},
        {"report", "interop"},
        {"earlier", "insight"},
        {"selection"},
        {"fit"},
        {"heads"},
        {"methods", "tasks"},
        {"data"},
    ),
    "onebert_server": (
        {"extensions"},
        {"cli"},
        {"run"},
        {"facades", "remote"},
        {"http", "score"},
        {"runtime"},
        {"hooks", "hosts"},
        {"answering"},
        {"versions"},
        {"engine"},
        {"access", "fairness", "page", "telemetry"},
    ),
}

# Library -> the only rooms that import it.
ONLY_IN = {
    "fastapi": {
        "onebert_server.extensions",
        "onebert_server.facades",
        "onebert_server.http",
        "onebert_ray.front_end",
        "onebert_server.run",
    },
    "starlette": {
        "onebert_server.facades",
        "onebert_server.http",
        "onebert_server.remote",
        "onebert_ray.replica",
        "onebert_ray.transport",
    },
    "msgspec": {
        "onebert.classifier",
        "onebert_mcp.facade",
        "onebert_mcp.tools",
        "onebert_semantic_router.bodies",
        "onebert_server.client",
        "onebert_server.contract",
        "onebert_server.extensions",
        "onebert_server.facades",
        "onebert_server.remote",
        "onebert_server.http",
        "onebert_ray.calls",
        "onebert_ray.messages",
        "onebert_ray.transport",
    },
    "jinja2": {"onebert_training.report"},
    "cryptography": {"onebert_store.samples"},
    "sqlalchemy": {"onebert_store.registry", "onebert_store.samples", "onebert_store.upkeep"},
    "psycopg": {"onebert_store.registry"},
    "obstore": {"onebert_store.blobs"},
    "opentelemetry": {"onebert_server.telemetry"},
}


def files(package: str) -> list[Path]:
    return sorted((ROOT / ARROWS[package][0] / package).rglob("*.py"))


@cache
def import_nodes(path: Path) -> list[ast.AST]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> Iterator[str]:
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def modules(package: str) -> list[tuple[str, Path]]:
    """Every file of a component with the name that it is imported by."""
    folder = ROOT / ARROWS[package][0]
    return [
        (".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in files(package)
    ]


def room(module: str) -> str:
    """`onebert_server.http.routes.tasks` is in `onebert_server.http`; a file at the root is a room of its own."""
    return ".".join(module.split(".")[:2])


@cache
def imports_between_files() -> dict[str, set[str]]:
    """Every file of the project with the files that it imports, imports inside functions and for types included."""
    known = {name for package in ARROWS for name, _ in modules(package)}
    graph: dict[str, set[str]] = {}
    for package in ARROWS:
        for name, path in modules(package):
            nodes = import_nodes(path)
            named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
            for node in nodes:
                if isinstance(node, ast.ImportFrom) and node.module:
                    named += [f"{node.module}.{alias.name}" for alias in node.names]
            names = {name if name in known else name.rpartition(".")[0] for name in named}
            graph[name] = (names & known) - {name}
    return graph


@pytest.mark.parametrize("package", ARROWS)
def test_components_import_only_along_the_arrows(package: str) -> None:
    allowed = ARROWS[package][1] | {package}
    imported_names = {(path.name, name) for path in files(package) for name in imported(path)}
    assert imported_names, f"{package} has no files"
    assert [(file, name) for file, name in imported_names if name in ARROWS and name not in allowed] == []


# What a process does, and what it has not loaded then.
LIGHT = {
    "store": (
        "from onebert_store.registry.registry import Registry; Registry.open(pathlib.Path(sys.argv[1])).close()",
        {"obstore", "psycopg", "torch"},
    ),
    "server": ("import onebert_server.run.app, onebert_server.run.serve", {"scipy", "sklearn", "pyarrow"}),
    "front end": (
        "import onebert_server.run.child; from onebert_server.facades.table import facades; facades()",
        {"torch", "transformers", "sqlalchemy", "httpx"},
    ),
    "files through a server": ("import onebert_server.score.command, onebert_server.score.served", {"torch"}),
    "Python API": ("import onebert", {"torch", "numpy", "httpx", "pydantic"}),
    "client": ("import onebert; onebert.Client", {"torch", "numpy", "pydantic", "fastapi", "sqlalchemy"}),
}


@pytest.mark.parametrize(("code", "heavy"), LIGHT.values(), ids=LIGHT)
def test_nothing_heavy_is_loaded_before_it_is_used(tmp_path: Path, code: str, heavy: set[str]) -> None:
    command = [sys.executable, "-c", f"import sys, pathlib; {code}; print(*sys.modules)", tmp_path]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert heavy & set(out.stdout.split()) == set()


def test_the_encoder_knows_neither_http_nor_optimizers() -> None:
    for path in files("onebert_encoder"):
        assert not {"fastapi", "starlette", "httpx", "uvicorn"} & set(imported(path)), path.name
        assert "torch.optim" not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_stay_at_their_edge(library: str) -> None:
    users = {room(name) for package in ARROWS for name, path in modules(package) if library in set(imported(path))}
    assert users == ONLY_IN[library]


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_from_rooms_below_it(package: str) -> None:
    height = {name: len(ROOMS[package]) - index for index, names in enumerate(ROOMS[package]) for name in names}
    rooms = {room(name).partition(".")[2] for name, _ in modules(package)}
    assert height.keys() <= rooms, "a room of the table does not exist"
    turned_back = [
        (source, target)
        for source, targets in imports_between_files().items()
        for target in targets
        if source.partition(".")[0] == target.partition(".")[0] == package and room(source) != room(target)
        if height.get(room(source).partition(".")[2], 0) <= height.get(room(target).partition(".")[2], 0)
        if height.get(room(target).partition(".")[2], 0)
    ]
    assert turned_back == []


def test_no_files_or_folders_import_each_other_in_a_circle() -> None:
    """Of every folder: the files and folders in it, each with those beside it that it imports from."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for source, targets in imports_between_files().items():
        for target in targets:
            here, there = f"{source}.".split("."), f"{target}.".split(".")
            shared = next(at for at, (first, other) in enumerate(zip(here, there, strict=False)) if first != other)
            beside = graphs.setdefault(".".join(here[:shared]), {})
            beside.setdefault(here[shared], set()).add(there[shared])
    for graph in graphs.values():
        TopologicalSorter(graph).prepare()


EXTENSIONS = "onebert_server.extensions"


def test_no_core_module_imports_an_extension_and_no_extension_another() -> None:
    assert {f"{EXTENSIONS}.{name}" for name in INSTALLED} == {
        ".".join(name.split(".")[:3]) for name, _ in modules("onebert_server") if name.startswith(f"{EXTENSIONS}.")
    }
    crossing = [
        (source, target)
        for source, targets in imports_between_files().items()
        for target in targets
        if target.startswith(f"{EXTENSIONS}.") and source.split(".")[:3] != target.split(".")[:3]
    ]
    assert crossing == []


def test_the_library_of_kept_answers_has_one_extension() -> None:
    users = {
        ".".join(source.split(".")[:3])
        for source, targets in imports_between_files().items()
        for target in targets
        if target.startswith("onebert_store.samples.") and not source.startswith("onebert_store.")
    }
    assert users <= {f"{EXTENSIONS}.feedback"}


@pytest.mark.parametrize(
    ("package", "known"),
    [("onebert_demo", {"onebert_server.client", "onebert_server.run"}), ("onebert", {"onebert_server.client"})],
)
def test_who_knows_the_server_from_outside(package: str, known: set[str]) -> None:
    names = {target for name, _ in modules(package) for target in imports_between_files()[name]}
    assert {room(name) for name in names if name.startswith("onebert_server.")} == known


def test_every_file_says_what_it_is_for() -> None:
    for package in ARROWS:
        for path in files(package):
            first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            assert first, f"{path.name} has no docstring"
            assert first.splitlines()[0].strip(), f"{path.name} starts with an empty line"
