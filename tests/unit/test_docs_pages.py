"""The pages of docs name nothing that does not exist: files, options, variables, other pages, messages."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "adapters_store/FORMAT.md", *ROOT.glob("docs/**/*.md")]
# Unlike these, the pages of `make bench` have their machine's numbers beside them.
PAGES += [page for page in ROOT.glob("benchmarks/results/*.md") if not page.with_suffix(".json").exists()]
SOURCES = [
    path
    for folder in ("adapters_store", "encoder", "training", "server", "plugins", "api", "demo", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
]
FILES = [f"/{path}" for path in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()]
# Not ours: curl's, LiteLLM's, Ray's `ray start --head`, kubectl's, docker's.
FOREIGN_OPTIONS = {"--config", "--header", "--data", "--silent", "--show-error", "--fail-with-body", "--fail", "--head"}
FOREIGN_OPTIONS |= {"--kustomize", "--namespace", "--from-literal", "--build-arg"}
# Those of pip, useradd, install, systemctl and systemd-run.
FOREIGN_OPTIONS |= {"--constraint", "--no-deps", "--system", "--home-dir", "--shell", "--mode"}
FOREIGN_OPTIONS |= {"--now", "--pipe", "--uid", "--property", "--setenv"}
# Of pytest-cov.
FOREIGN_OPTIONS |= {"--cov"}

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@cache
def literals() -> str:
    """Every piece of text between the values of a string in the source, a line each."""
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


CODE = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)


@pages
def test_every_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|cpp|sql))`", text))
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in FILES)} == set()


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            # A link to one of two equal headings leads to the first, whichever was meant.
            assert [_anchor(heading) for heading in headings].count(anchor[1:]) == 1, f"{target}{anchor}"


def _anchor(heading: str) -> str:
    """As GitHub makes one of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pages
def test_every_option_and_variable_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - FOREIGN_OPTIONS
    # Options that are made of fields have their names, with dashes for the fields' underscores.
    fields = {f"--{name.replace('_', '-')}" for name in re.findall(r"^    (\w+): Annotated\[", CODE, re.MULTILINE)}
    written = set(re.findall(r"--[a-z][a-z-]+", CODE))
    assert options - written - fields - {"--install-completion"} == set()
    variables = set(re.findall(r"\bONEBERT_([A-Z_]+)\b", text))
    server = ROOT / "server/onebert_server"
    files = [server / "settings.py", *server.glob("extensions/*/settings.py")]
    settings = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert {name for name in variables if f"    {name.lower()}:" not in settings} <= {"URL", "API_KEY"}


@pages
def test_every_row_of_a_table_has_the_cells_of_its_head(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        # A bar inside of a cell is written with a backslash; without one it ends the cell, also in code.
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


def words(page: Path) -> int:
    """Without code, as a reader at 280 words a minute counts."""
    return len(re.sub(r"```.*?```", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL).split())


def test_the_guide_is_read_in_fifty_minutes_and_its_first_five_pages_in_twenty() -> None:
    pages = sorted(ROOT.glob("docs/guide/*.md"))
    order = [ROOT / "docs" / name for name in re.findall(r"\((guide/.+?\.md)\)", (ROOT / "docs/README.md").read_text())]
    assert sorted(order) == pages
    assert (sum(map(words, pages)) <= 14_000, sum(map(words, order[:5])) <= 5_600) == (True, True)


def test_every_decision_that_is_named_has_its_heading() -> None:
    headings = re.findall(r"^## (\d+)\. ", (ROOT / "docs/decisions.md").read_text(encoding="utf-8"), re.MULTILINE)
    # A decision that no longer binds leaves its number free.
    assert [*map(int, headings)] == sorted({*map(int, headings)})
    texts = [CODE, *(page.read_text(encoding="utf-8") for page in PAGES)]
    named = {number for text in texts for number in re.findall(r"\b[Dd]ecisions? \[?(\d+)\b", text)}
    assert len(named) > 15
    assert named - set(headings) == set()


@pages
def test_every_link_to_a_decision_leads_to_its_own_number(page: Path) -> None:
    links = re.findall(r"\[(?:[Dd]ecisions? )?(\d+)\]\([^)#]*#(\d+)-", page.read_text(encoding="utf-8"))
    assert [link for link in links if link[0] != link[1]] == []


def linked(page: Path, target: str, anchor: str) -> str:
    """The text that a link leads to: the page, or its section under the heading."""
    text = (page.parent / target).read_text(encoding="utf-8")
    for heading, below in re.findall(r"^#+ (.+)\n((?:(?!#+ ).*\n)*)", text, re.MULTILINE):
        if _anchor(heading) == anchor[1:]:
            return f"{heading}\n{below}"
    return text


def test_figures_of_the_readme_and_the_guide_stand_where_the_links_of_their_sections_lead() -> None:
    """Figures with a decimal point, in sections with a link to measurements."""
    checked, missing = 0, []
    for page in (ROOT / "README.md", ROOT / "docs/reference/bases.md", *ROOT.glob("docs/guide/*.md")):
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for section in re.split(r"^#+ ", text, flags=re.MULTILINE):
            links = set(re.findall(r"\]\(([^)#]*(?:benchmarks/results/[\w-]+|decisions)\.md)(#[^)]*)?", section))
            if not any("/results/" in target for target, _ in links):
                continue
            there = " ".join(linked(page, *link) for link in links).replace(",", "")
            words = re.sub(r"\]\([^)]*\)", "]", section)
            figures = re.findall(r"(?<![\w.])\d[\d,]*\.\d+(?!\.?\d)", words)
            pattern = r"(?<![\d.]){}(?!\.?\d)"
            missing += [
                (page.name, figure)
                for figure in figures
                if not re.search(pattern.format(re.escape(figure.replace(",", ""))), there)
            ]
            checked += len(figures)
    assert missing == []
    assert checked > 40


def test_the_picture_of_the_idea_is_what_its_script_writes() -> None:
    picture = ROOT / "docs/pictures/idea.svg"
    before = picture.read_text(encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "docs/pictures/idea.py"], check=True)
    assert picture.read_text(encoding="utf-8") == before


def test_no_command_installs_from_an_index_by_our_name() -> None:
    """Nothing is published: whoever takes the name there would be installed."""
    texts = [CODE, *(page.read_text(encoding="utf-8") for page in PAGES)]
    assert [
        command for text in texts for command in re.findall(r"pip install [^`\n]*?\bonebert(?:\[|\b(?![-.]))", text)
    ] == []


def test_every_dependency_is_named_with_its_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [
        requirement for group in project["optional-dependencies"].values() for requirement in group
    ]
    names = {re.match(r"[\w-]+", requirement).group() for requirement in wanted} - {"onebert"}
    page = set(re.findall(r"[@\w/-]+", (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")))
    assert names - page == set()
    # What tests alone install; an environment has the first word of its program's name, as `langchain.txt`.
    environments = ROOT / "tests/environments"
    first_words = {name.partition("-")[0] for name in page}
    assert {file.stem for file in environments.glob("*.txt")} - first_words == set()
    packages = [json.loads(file.read_text(encoding="utf-8")) for file in environments.glob("*/package.json")]
    assert {name for package in packages for name in package["dependencies"]} - page == set()


def test_every_message_of_the_troubleshooting_page_is_one_of_the_code() -> None:
    page = (ROOT / "docs/reference/troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.+?) \| ", page, re.MULTILINE)
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 35
    pieces = [piece.strip(" ;:'") for message in messages for piece in message.split("…")]
    assert {piece for piece in pieces if piece not in literals()} == set()
