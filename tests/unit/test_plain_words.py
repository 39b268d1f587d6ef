"""Docstrings, comments, messages and pages are written plainly: signs of sentences that are hard to read stay rare."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("adapters_store", "encoder", "training", "server", "plugins", "api", "demo")
# A sentence that opens with a relative word, or says of a thing only that something is told, said or none of it.
MARK = re.compile(
    r"(^|[.;:] +)(What|Who|Whom|Whoever|Of|Where|Those|That which|Whatever)\b|\b(is|are) none\b|\bsays? so\b"
    r"|\b(is|are|was) told\b|\bwhom\b|\bas many\b.*\bas\b|\bthat of\b|\bof which\b|\bthose (of|that|which)\b"
)
# The share of pieces with a mark that each kind may have: lower a bound when the share falls, never raise it.
BOUNDS = {"docstrings": 0.012, "comments": 0.001, "messages": 0.01, "pages": 0.001}
Piece = tuple[str, str]


def listed(*patterns: str) -> list[Path]:
    """The files of a checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in found.split("\0") if name and (path := ROOT / name).is_file()]


def of_python(path: Path) -> Iterator[Piece]:
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if said := ast.get_docstring(node):
                yield "docstrings", said
        elif isinstance(node, ast.Raise):
            for one in ast.walk(node):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield "messages", one.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield "comments", token.string.lstrip("# ")


def of_page(path: Path) -> Iterator[Piece]:
    text = re.sub(r"```.*?```", " ", path.read_text("utf-8"), flags=re.DOTALL)
    for line in text.splitlines():
        if not line.startswith(("|", "#", "    ")):
            yield from (("pages", one) for one in re.split(r"(?<=[.;]) +", line) if len(one.split()) > 4)


@cache
def pieces() -> dict[str, list[str]]:
    """Kind -> every piece of prose of it."""
    found: dict[str, list[str]] = {kind: [] for kind in BOUNDS}
    for path in listed(*(f"{part}/*.py" for part in PRODUCT)):
        for kind, said in of_python(path):
            found[kind].append(" ".join(said.split()))
    for path in listed("*.md"):
        if not path.is_relative_to(ROOT / "benchmarks/results"):
            for kind, said in of_page(path):
                found[kind].append(said)
    return found


@pytest.mark.parametrize("kind", BOUNDS)
def test_hard_sentences_stay_rare(kind: str) -> None:
    said = pieces()[kind]
    marked = [one for one in said if MARK.search(one)]
    assert len(said) > 100
    assert len(marked) <= BOUNDS[kind] * len(said), f"{len(marked)} of {len(said)}: {marked[:40]}"
