"""Every command that is suggested after `next:` is one that the command line takes."""

import ast
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from onebert_store.command import cli

ROOT = Path(__file__).parents[2]
PRODUCT = ("adapters_store", "encoder", "server", "training")
# The commands of the status stand behind `next:` there, and programs read them.
STATUS = ROOT / "server/onebert_server/http/schemas/status.py"
# What is put into a command; anything else is put in as `1`.
PUT_IN = {
    **{"_without(at.target, status.worse[0].version)": "--split none", "_at(url)": " --url U", "alone": ""},
    "status.next": "onebert status",
}
# Put in in one of two ways.
EITHER = {"named": ["", " --task NAME"]}


def written(node, choice):
    """The text of a string with something put into it; None for another expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(part.value)
            continue
        source = ast.unparse(part.value)
        parts.append(EITHER[source][choice] if source in EITHER else PUT_IN.get(source, "1"))
    return "".join(parts)


def lines():
    """The lines with `next:` of all strings of the product, and the commands of the status."""
    for file in sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        if "next: " not in source and file != STATUS:
            continue
        tree = ast.parse(source)
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            for choice in (0, 1):
                text = None if id(node) in inside | docs else written(node, choice)
                for line in (text or "").splitlines():
                    if line.startswith("next: ") or (file == STATUS and line.startswith("onebert ")):
                        yield file.name, line.removeprefix("next: ")


SUGGESTED = sorted(set(lines()))


def test_each_place_that_suggests_a_command_is_found():
    files = {"status.py", "tasks.py", "showing.py", "check.py", "calibrate.py", "cli.py", "commands.py", "one.py"}
    assert {file for file, _ in SUGGESTED} == files


@pytest.mark.parametrize("command", sorted({command for _, command in SUGGESTED}))
def test_a_suggested_command_is_taken_by_its_own_parser(command):
    program, name, *words = shlex.split(command)
    assert program == "onebert"
    context = get_command(cli.build_app()).make_context("onebert", [name, *words])
    _, parser, rest = context.command.resolve_command(context, [name, *words])
    parser.make_context(name, rest, parent=context)
