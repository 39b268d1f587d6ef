"""The generated pages of docs/reference are what the code gives now; `python docs/generate.py` writes them again."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATOR = runpy.run_path(str(ROOT / "docs/generate.py"))


@pytest.mark.parametrize("page", GENERATOR["PAGES"])
def test_a_page_of_the_reference_is_what_the_code_gives(page):
    assert (ROOT / "docs/reference" / page).read_text(encoding="utf-8") == GENERATOR["PAGES"][page]()


def _marked(mark):
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    calls = [call for text in texts for call in re.findall(rf"\.mark\.{mark}\(([^)]*)\)", text)]
    return {argument for call in calls for argument in re.findall(r'"([\w-]+)"', call)}


def test_every_promise_has_a_test_or_a_command_and_every_marker_a_promise():
    sections = GENERATOR["promises"]()
    ids = [promise for section in sections for promise in section["promises"]]
    commands = {promise: command for section in sections for promise, command in section["measured"].items()}
    assert len(set(ids)) == len(ids)
    assert set(ids) == _marked("promise") | set(commands)
    assert [command for command in commands.values() if not (ROOT / command.split()[1]).is_file()] == []
