"""The generated pages of docs/reference are what the code gives now, and the promises' tests exist."""

import re
import runpy
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATOR = runpy.run_path(str(ROOT / "docs/generate.py"))


@pytest.mark.parametrize("page", GENERATOR["PAGES"])
def test_a_page_of_the_reference_is_what_the_code_gives(page):
    assert (ROOT / "docs/reference" / page).read_text(encoding="utf-8") == GENERATOR["PAGES"][page]()


def test_each_promise_names_tests_or_commands_that_exist():
    lines = (ROOT / "docs/reference/promises.md").read_text(encoding="utf-8").split("\n- ")[1:]
    paths = [re.findall(r"`(?:python )?((?:tests|benchmarks)/[\w/]+\.py)[^`]*`", line) for line in lines]
    assert all(paths)
    assert [path for path in chain(*paths) if not (ROOT / path).is_file()] == []
