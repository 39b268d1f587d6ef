"""The C++ kernels: the same bits in every batch, and what happens where they cannot be built.

`test_training_kernels.py` compares what they compute with the plain ones, forward and backward.
"""

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from onebert_encoder.compute.kernels import library, native
from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.layout.stage import stage_of
from stages import anew, draw, needs_kernels

pytestmark = [needs_kernels, pytest.mark.usefixtures("two_threads")]

DTYPES = [torch.float32, torch.bfloat16]


def fast(dtype: torch.dtype) -> PlainKernels:
    return native.load_native("cpu", dtype)(NO_DROPOUT)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_has_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    lengths, rows = [3, 33, 17, 40], [1, 0, 2, 1]
    at, alone = stage_of(lengths, rows, 3, dtype), stage_of([17], [2], 7, dtype)
    qkv, b = draw(96, 3 * 48, dtype=dtype), draw(3, 48, dtype=dtype, seed=1)
    sequence = torch.cat([qkv[36:53], torch.zeros(7, 3 * 48, dtype=dtype)])
    kernels = fast(dtype)
    assert [kernel.description.partition(" ")[0] for kernel in (kernels, PlainKernels(F.gelu))] == ["native", "plain"]
    assert kernels.batch_invariant
    assert not PlainKernels(F.gelu).batch_invariant
    assert torch.equal(kernels.attend(qkv, b, at, 3)[36:53], kernels.attend(sequence, b, alone, 3)[:17])
    y, mine = qkv[:, :48].contiguous(), sequence[:, :48].contiguous()
    gain = Gain(b[0], b, None)
    among = kernels.add_norm(y.clone(), y, b, at, gain, 1e-12)
    assert torch.equal(among[36:53], kernels.add_norm(mine.clone(), mine, b, alone, gain, 1e-12)[:17])
    among = kernels.add_activate(y.clone(), b, at)
    assert torch.equal(among[36:53], kernels.add_activate(mine.clone(), b, alone)[:17])


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_only_costs_the_time_to_compile(tmp_path: Path) -> None:
    (tmp_path / "onebert").write_text("a file where the folder should be")
    assert load_in_a_new_process(tmp_path) == "native\n"


@pytest.mark.slow
def test_compiled_code_is_taken_from_a_cache_that_nobody_else_can_write(tmp_path: Path) -> None:
    left = tmp_path / "onebert/onebert-kernels-killed"
    left.mkdir(parents=True, mode=0o700)
    left.parent.chmod(0o700)
    os.utime(left, (0, 0))
    assert load_in_a_new_process(tmp_path) == "native\n"
    (library,) = left.parent.iterdir()
    marked = library.read_bytes() + b"a mark that loading does not mind"

    def kept(content: bytes, mode: int) -> bool:
        library.write_bytes(content)
        library.chmod(mode)
        assert load_in_a_new_process(tmp_path) == "native\n"
        return library.read_bytes() == content

    assert kept(marked, 0o600)
    # Compiled again, in its place.
    assert not kept(marked, 0o620)
    assert stat.S_IMODE(library.stat().st_mode) == 0o600
    assert not kept(marked, 0o602)
    assert not kept(b"damaged", 0o600)
    # A folder that others can write is not even looked into.
    library.parent.chmod(0o770)
    assert kept(b"damaged", 0o600)


def test_without_a_compiler_plain_kernels_take_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with anew(library.find_library, native.load_native), caplog.at_level(logging.WARNING):
        assert [native.load_native("cpu", dtype) for dtype in DTYPES] == [None, None]
    (record,) = caplog.records
    assert "neither g++ nor c++ is installed" in record.message


def load_in_a_new_process(cache: Path) -> str:
    code = (
        "import torch; from onebert_encoder.compute.kernels.native import load_native;"
        "print('native' if load_native('cpu', torch.float32) else 'plain')"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_a_call_without_memory_fails_alone() -> None:
    """A sequence so long that its keys and values alone take ten times the memory that the process may have."""
    code = """
import resource, torch
from onebert_encoder.compute.kernels.native import load_native
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.layout.stage import stage_of
kernels = load_native("cpu", torch.bfloat16)(NO_DROPOUT)
length, h = 100_000, 16
stage, qkv, b_q = stage_of([length], [0], 0, torch.bfloat16), torch.zeros(length, 3 * h).bfloat16(), torch.zeros(1, h)
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**21 + 2 * length * h,) * 2)
try:
    kernels.attend(qkv, b_q.bfloat16(), stage, 1)
except MemoryError as error:
    print(error)
"""
    tests = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tests)
    assert "no memory" in done.stdout
