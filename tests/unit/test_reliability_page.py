"""docs/reference/promises.md promises nothing that no test or measurement holds, and says when each test runs."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tiers import GROUPS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/promises.md").read_text(encoding="utf-8")
# An item begins at a dash and goes on over lines that are indented.
GUARANTEES = re.findall(r"^- (.+(?:\n  .+)*)", PAGE, re.MULTILINE)
# What has no mark runs before every landing; `layouts` runs a test once more, nightly, through front ends.
NIGHTLY = re.compile(r'nightly\("(\w+)"\)')


def marks_of(nodes: list[ast.expr]) -> str:
    return " ".join(ast.unparse(node).replace("'", '"') for node in nodes)


def tiers_of(marks: str) -> set[str]:
    """When a test with such marks runs: `landing`, or `nightly: GROUP`."""
    groups = set(NIGHTLY.findall(marks))
    return {f"nightly: {group}" for group in groups} or {"landing"}


def marked(path: Path) -> dict[str, set[str]]:
    """Each test of a file, by its name, and when it runs; a class runs when any of its tests does."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_file = marks_of(
        [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
    )
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # A group that stands inside of a parameter's marks is of some of its cases.
            own = [one for one in node.decorator_list if "parametrize" not in ast.unparse(one)]
            found[node.name] = tiers_of(f"{of_file} {marks_of(own)}")
    return found


@cache
def everything() -> tuple[dict[str, dict[str, set[str]]], dict[str, set[str]]]:
    """File -> test -> when it runs; and test -> when it runs, in whatever file."""
    files: dict[str, dict[str, set[str]]] = {}
    tests: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name, tiers in marked(path).items():
            files.setdefault(path.name, {})[name] = tiers
            tests.setdefault(name, set()).update(tiers)
    return files, tests


def named(guarantee: str) -> tuple[set[str], set[str], list[str]]:
    """The files and tests that an item names, and the scripts that measured it."""
    return (
        set(re.findall(r"\btest_\w+\.py", guarantee)),
        set(re.findall(r"\b(?:test_|Test)\w+\b(?!\.py)", guarantee)),
        re.findall(r"benchmarks/[\w/]+\.py", guarantee),
    )


def runs(guarantee: str) -> str:
    """The words at an item's end: when its tests run."""
    files, tests, scripts = named(guarantee)
    in_files, everywhere = everything()
    alone = [
        tiers
        for file in files
        if not tests & in_files[file].keys()
        for name, tiers in in_files[file].items()
        if name.startswith("test_")
    ]
    found = set().union(*(everywhere[name] for name in tests), *alone)
    return f"[{', '.join(sorted(found) + (['measured'] if scripts else []))}]"


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_guarantee_names_tests_that_exist_or_the_command_that_measured_it(guarantee: str) -> None:
    files, tests, scripts = named(guarantee)
    assert tests or scripts
    assert files <= everything()[0].keys()
    assert tests <= everything()[1].keys()
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_guarantee_says_when_its_tests_run(guarantee: str) -> None:
    assert guarantee.endswith(runs(guarantee)), f"end this item with {runs(guarantee)}"


def test_every_nightly_test_is_of_a_group_that_exists() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert set(NIGHTLY.findall(path.read_text(encoding="utf-8"))) <= GROUPS.keys() | {"GROUP"}, path.name


def test_every_groups_own_files_exist() -> None:
    assert [part for group in GROUPS.values() for part in group.own if not (ROOT / part).exists()] == []
