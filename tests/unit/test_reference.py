"""The generated pages of docs/reference are what the code gives now; `python docs/generate.py` writes them again."""

import runpy
from pathlib import Path

import pytest

from tiers import GROUPS

ROOT = Path(__file__).parents[2]
GENERATOR = runpy.run_path(str(ROOT / "docs/generate.py"))


@pytest.mark.parametrize("page", GENERATOR["PAGES"])
def test_a_page_of_the_reference_is_what_the_code_gives(page):
    assert (ROOT / "docs/reference" / page).read_text(encoding="utf-8") == GENERATOR["PAGES"][page]()


def test_a_promise_names_tests_that_exist_or_a_script_that_measured_it():
    for section in GENERATOR["promises"]():
        for promise in section["promise"]:
            scripts = [command.split()[1] for command in promise.get("measured", ())]
            assert scripts or promise["tests"], promise["says"]
            assert [script for script in scripts if not (ROOT / script).is_file()] == []
            assert [name for name in promise.get("tests", ()) if name not in GENERATOR["tests"]()] == []


def test_every_nightly_test_is_of_a_group_that_exists():
    for path in (ROOT / "tests").rglob("test_*.py"):
        groups = set(GENERATOR["NIGHTLY"].findall(path.read_text(encoding="utf-8")))
        assert groups <= GROUPS.keys(), path.name


def test_every_groups_own_files_exist():
    assert [part for group in GROUPS.values() for part in group.own if not (ROOT / part).exists()] == []
