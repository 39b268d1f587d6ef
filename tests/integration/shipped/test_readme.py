"""The README, followed top to bottom: every command block is run as it stands, in order, in one folder."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments import foreign_env, python_environment

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# What follows "```": `bash` blocks are run, `bash server` is left running, `python client` asks it as a user's program
# would, `sh` is set-up, which this test stands on.
BLOCKS = re.findall(r"^```(\S+)(?: (\S+))?\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
STEP_TIMEOUT_S = 600  # twelve trainings on two busy cores


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The activated environment, without the machine's own settings."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("demo", "training"):
        (folder / name).symlink_to(ROOT / name)
    own = {name: value for name, value in os.environ.items() if not name.startswith("ONEBERT_")}
    return own | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PWD": str(folder)}


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[str]:
    """The README's server, on a free port; gives its address."""
    (command,) = (block for language, kind, block in BLOCKS if (language, kind) == ("bash", "server"))
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command.strip()} --port 0"],
        cwd=environment["PWD"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = re.match(r"Listening on (http://\S+):", process.stdout.readline())
    assert found
    yield found[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(180) == 0
    process.stdout.close()


def test_the_readme_has_blocks_of_every_kind() -> None:
    assert [(language, kind) for language, kind, _ in BLOCKS].count(("bash", "server")) == 1
    assert sum(block.count("onebert ") for language, _, block in BLOCKS if language == "bash") >= 12


def test_following_the_readme_works(environment: dict[str, str], server: str) -> None:
    """One test, because each block stands on what the blocks before it left behind."""
    for language, kind, block in BLOCKS:
        asks = (language, kind) == ("python", "client")
        if not asks and (language != "bash" or kind == "server"):
            continue
        script = block.replace("http://127.0.0.1:8000", server)
        done = subprocess.run(
            [*interpreter(script), script] if asks else ["bash", "-c", f"set -euo pipefail\n{script}"],
            cwd=environment["PWD"],
            env=foreign_env() if asks else environment | {"ONEBERT_URL": server},
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def interpreter(script: str) -> list[str]:
    """What runs a client: OpenAI's SDK has an environment of its own, Hugging Face's comes with transformers."""
    python = python_environment("openai").program("python") if "openai" in script else sys.executable
    return [str(python), "-I", "-c"]


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"make (\w+)", README))
    assert {"demo", "test"} <= named
    assert {target for target in named if f"\n{target}:" not in makefile} == set()
