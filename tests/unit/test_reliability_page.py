"""docs/reliability.md promises nothing that no test or measurement holds."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
# An item begins at a dash and goes on over lines that are indented.
GUARANTEES = re.findall(r"^- (.+(?:\n  .+)*)", PAGE, re.MULTILINE)
TESTS = {
    node.name
    for path in (ROOT / "tests").rglob("test_*.py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
}
FILES = {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_guarantee_names_tests_that_exist_or_the_command_that_measured_it(guarantee: str) -> None:
    files, tests = (
        set(re.findall(r"\btest_\w+\.py", guarantee)),
        set(re.findall(r"\b(?:test_|Test)\w+\b(?!\.py)", guarantee)),
    )
    scripts = re.findall(r"benchmarks/[\w/]+\.py", guarantee)
    assert tests or scripts
    assert files <= FILES
    assert tests <= TESTS
    assert all((ROOT / script).is_file() for script in scripts)
