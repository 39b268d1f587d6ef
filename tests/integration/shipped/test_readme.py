"""The README, followed top to bottom: every command block is run as it stands, in order, in one folder."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments import Environment
from pages import ROOT, blocks, reader_env, run_block

# What follows "```": `bash` blocks are run, `bash server` is left running, `python client` asks it as a user's program
# would, `sh` is set-up, which this test stands on.
BLOCKS = blocks("README.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout's folder, as far as the README's commands read it."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("demo", "training"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The README's server, on a free port; gives its address."""
    (command,) = (block.code for block in BLOCKS if (block.language, block.kind) == ("bash", "server"))
    process = subprocess.Popen(
        ["bash", "-c", f"exec env {command.strip()} --port 0"],
        cwd=folder,
        env=reader_env(),
        stdout=subprocess.PIPE,
        text=True,
    )
    match = re.match(r"Listening on (http://\S+):", process.stdout.readline())
    assert match
    yield match[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(180) == 0
    process.stdout.close()


def test_the_readme_has_blocks_of_every_kind() -> None:
    assert [(block.language, block.kind) for block in BLOCKS].count(("bash", "server")) == 1
    assert sum(block.code.count("onebert ") for block in BLOCKS if block.language == "bash") >= 14


# The whole page, an installation and trainings with it, may take its time on a busy machine.
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_following_the_readme_works(folder: Path, server: str) -> None:
    """One test, because each block stands on what the blocks before it left behind."""
    for block in BLOCKS:
        code = block.code.replace("http://127.0.0.1:8000", server)
        if (block.language, block.kind) == ("python", "client"):
            Environment(ROOT, (sys.executable, "-I")).prints(code)
        elif block.language == "bash" and block.kind != "server":
            run_block("bash", code, folder, ONEBERT_URL=server)


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= named
    assert {target for target in named if f"\n{target}:" not in makefile} == set()
