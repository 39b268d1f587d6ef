"""docs/migrating.md, followed top to bottom: its blocks are run in order, on a base and data that need no network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servers import Server, clean_env, run_onebert

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FEW_STEPS = "--max-steps 10"


@pytest.mark.slow
def test_following_the_page_works(tmp_path: Path) -> None:
    """One test, because each block stands on what the blocks before it left behind."""
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    _make_old_model(tmp_path)
    with Server(tmp_path, base="") as server:
        environment = clean_env() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment |= {"ONEBERT_URL": server.url, "PWD": str(tmp_path)}
        printed = ""
        for language, block in BLOCKS:
            script = block.replace("onebert train", f"onebert train {FEW_STEPS}")
            command = ["bash", "-euc", script] if language == "bash" else [sys.executable, "-c", script]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout
        assert "test: the old model is right in " in printed
        with server.client() as client:
            task = client.task("review-tone")
    assert task["aliases"] == {"live": 1, "next": 2}


def _make_old_model(folder: Path) -> None:
    """What the reader of the page has: a checkpoint that a Hugging Face pipeline loads."""
    data = ROOT / "demo/onebert_demo/data/review-tone"
    delta = folder / "old.safetensors"
    trained = run_onebert(
        "train", "--task", "old", "--data", data, "--pooling", "pooler", "--max-steps", 30, "--out", delta
    )
    assert trained.returncode == 0, trained.stderr
    exported = run_onebert("export", delta, "--merged", folder / "old-model")
    assert exported.returncode == 0, exported.stderr
