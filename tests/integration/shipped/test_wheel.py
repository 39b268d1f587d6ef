"""What users install: a wheel built from the source distribution, checked, and used in an environment of its own."""

import os
import platform
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from bases import tiny_base
from onebert_encoder.compute.kernels import compiler, library
from stages import needs_kernels

ROOT = Path(__file__).parents[3]
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


NAMES = [level.name for level in compiler.LEVELS.get(platform.machine(), ())]
HERE = [level.name for level in compiler.supported(platform.machine(), library._cpu_flags().split())]
each_level = pytest.mark.parametrize(
    "level",
    [
        pytest.param(name, marks=pytest.mark.skipif(name not in HERE, reason="this processor has no such instructions"))
        for name in NAMES
    ],
)
# What C++ code may call on any Linux; OpenMP comes with PyTorch.
ALWAYS_THERE = {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

# The last hidden state of plain Transformers beside that of the one call, and what computed it.
ANSWERS = """
import sys
import numpy as np
import torch
from transformers import AutoModel
from onebert_encoder.base.base import load_base
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.maths.choose import answering_kernels, choose_forward
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens

ids = list(range(5, 30))
with torch.inference_mode():
    model = AutoModel.from_pretrained(sys.argv[1]).eval()
    # The last bias is added with a task's head.
    plain = model(torch.tensor([ids])).last_hidden_state[0] - model.encoder.layer[-1].output.LayerNorm.bias
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.15)):
        base = load_base(sys.argv[1], dtype=dtype)
        rows = stack_rows(base, [fold(base, {})])
        batch = pack(base, Sequences.of([Tokens(ids, [0] * len(ids))]), [0])
        found = choose_forward(base, NO_DROPOUT).encode(rows, batch)
        np.testing.assert_allclose(found[: len(ids)], plain, rtol=0, atol=tolerance)
print(answering_kernels(base).description)
"""

# The kernels' own tests, on a library of the wheel.
TESTS = """
import sys
import pytest
import torch  # with OpenMP, which the library calls
from onebert_encoder.compute.kernels import library
found = library.Library(sys.argv[1], "of the wheel")
library._of_wheel = lambda: found
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", sys.argv[2], *sys.argv[3:]]))
"""


def build(out, **environment):
    """Built as a release is: first the source distribution, then the wheel from that alone; and what was said."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    [made] = out.glob("*.whl")
    return made, done.stdout + done.stderr


def install(wheel, folder):
    """An environment with the wheel, which finds what it depends on where these tests do; its folder of commands."""
    venv.create(folder, with_pip=True)
    [site] = folder.glob("lib/python*/site-packages")
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True, capture_output=True, text=True)
    # A path file in an added folder is not read, so the checkout that is installed there stays out of sight.
    folders = [folder for folder in sys.path if folder.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(folders), encoding="utf-8")
    return folder / "bin"


@pytest.fixture(scope="module")
def plain_build(tmp_path_factory):
    """A wheel that is built where nothing is installed, neither a compiler nor PyTorch; and what was said."""
    empty = tmp_path_factory.mktemp("empty")
    (empty / "torch.py").write_text("raise SystemExit('the build imports PyTorch')", encoding="utf-8")
    return build(tmp_path_factory.mktemp("dist"), PATH=str(empty), PYTHONPATH=str(empty))


@pytest.fixture(scope="module")
def wheel(plain_build):
    return plain_build[0]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A wheel that is built where a compiler is installed."""
    return build(tmp_path_factory.mktemp("compiled"))[0]


@pytest.fixture(scope="module")
def libraries(compiled, tmp_path_factory):
    """The compiled wheel's libraries by level."""
    folder = tmp_path_factory.mktemp("libraries")
    with zipfile.ZipFile(compiled) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".so")])
    return {path.name.rpartition("_")[0]: path for path in folder.rglob("*.so")}


def run(*command, cwd, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, cwd=cwd, env=clean).stdout


def test_the_wheel_holds_every_file_that_is_read(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert COMPANIONS
    assert names >= COMPANIONS
    assert not [name for name in names if name.startswith(("tests/", "docs/")) or "__pycache__" in name]


def check(wheel):
    command = [sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel]
    subprocess.run(command, check=True)


def test_the_wheel_is_well_formed(wheel):
    check(wheel)


def test_a_wheel_without_a_compiler_is_for_every_machine(plain_build):
    wheel, printed = plain_build
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    [line] = [line for line in printed.splitlines() if "kernels" in line]
    assert "no compiled CPU kernels (neither g++ nor c++ is installed); they are compiled at first use" in line


@pytest.mark.slow
def test_the_command_of_the_wheel_works_without_the_checkout(installed, tmp_path):
    code = "import onebert_store, onebert_server.runtime as runtime; print(onebert_store.__file__, runtime.__file__)"
    for path in run(installed / "python", "-c", code, cwd=tmp_path).split():
        assert Path(path).is_relative_to(installed.parent)
    assert "bitfit" in run(installed / "python", installed / "onebert", "methods", cwd=tmp_path)


# Writes what it is asked for, in milliseconds, in place of the kernels.
STAND_IN = """#!/bin/sh
while [ $# -gt 0 ] && [ "$1" != -o ]; do shift; done
exec cc -shared -fPIC -x c /dev/null -o "$2"
"""


@needs_kernels
def test_a_build_calls_the_compiler_for_each_level(tmp_path):
    stand_in = tmp_path / "bin/g++"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN, encoding="utf-8")
    stand_in.chmod(0o755)
    wheel, _ = build(tmp_path / "dist", PATH=f"{stand_in.parent}:{os.environ['PATH']}")
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert sorted(Path(name).name.rpartition("_")[0] for name in libraries) == sorted(NAMES)


@needs_kernels
@pytest.mark.slow
def test_a_compiled_wheel_needs_only_the_c_library(compiled, libraries):
    check(compiled)
    assert sorted(libraries) == sorted(NAMES)
    tag = re.search(r"-py3-none-manylinux_(\d+)_(\d+)_(\w+)\.whl$", compiled.name)
    assert tag[3] == platform.machine()
    for path in libraries.values():
        about = subprocess.run(["objdump", "-p", "-T", path], check=True, capture_output=True, text=True).stdout
        assert set(re.findall(r"NEEDED +(\S+)", about)) <= ALWAYS_THERE
        versions = {(int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", about)}
        assert max(versions) <= (int(tag[1]), int(tag[2]))


@needs_kernels
@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="this processor has none of the levels")
def test_a_compiled_wheel_answers_as_transformers_does(compiled, tmp_path):
    installed, empty = install(compiled, tmp_path / "env"), tmp_path / "empty"
    empty.mkdir()
    output = run(
        *(installed / "python", "-c", ANSWERS, tiny_base()),
        cwd=tmp_path,
        PATH=str(empty),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert output.splitlines()[-1] == f"native ({HERE[0]})"
    assert not (tmp_path / "cache/onebert").exists()


@needs_kernels
@pytest.mark.slow
@each_level
def test_every_level_agrees_with_the_plain_kernels(level, libraries):
    files = ("kernels", "branches", "quantized", "forward", "training_kernels", "trained_linear")
    tests = [ROOT / f"tests/unit/encoder/test_{name}.py" for name in files]
    chosen = "attention or add_ or finite or bits or product or large or gelu or branch or mixture or share or norm"
    command = [sys.executable, "-c", TESTS, libraries[level], f"{chosen} or dropout", *tests]
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_the_wheel_installs_clean_with_the_pinned_versions(compiled, tmp_path):
    """As the image does it: nothing is there before, and everything comes from the package index."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--use-pep517", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{compiled}[minilm]"], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    task = ROOT / "demo/onebert_demo/data/review-tone"
    onebert = tmp_path / "env/bin/onebert"
    out = tmp_path / "tone.safetensors"
    run(
        onebert,
        "train",
        "--task",
        "tone",
        "--data",
        task,
        "--max-steps",
        "2",
        "--out",
        out,
        cwd=tmp_path,
    )
    assert "tone" in run(onebert, "inspect", out, cwd=tmp_path)
