"""The C++ kernels against the plain ones, on shapes that no base has; and what happens where they cannot be built."""

import logging
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lengths import examples
from onebert_encoder.compute.kernels import library, native
from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.compute.kernels.protocol import Gain, Kernels
from onebert_encoder.layout.dropout import NO_DROPOUT
from stages import draw, needs_kernels, stage_of

pytestmark = [needs_kernels, pytest.mark.usefixtures("two_threads")]

PLAIN = PlainKernels(F.gelu)
# Tolerances for numbers of order 1 to 4. float32: sums of up to 600 roundings of 6e-8. bfloat16: both kernels round
# results to 8 bits, and the plain ones round intermediate results, too, three times.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.1}
DTYPES = list(TOLERANCE)


def fast(dtype: torch.dtype) -> Kernels:
    make = native.load_native("cpu", dtype)
    assert make is not None
    return make(NO_DROPOUT)


def assert_close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=TOLERANCE[want.dtype], equal_nan=True)


sequences = st.lists(st.tuples(st.integers(1, 70), st.integers(0, 3)), min_size=1, max_size=9)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=examples(40), deadline=None)
@given(sequences, st.integers(1, 3), st.sampled_from([1, 5, 16, 24, 32, 48, 64, 80]), st.integers(0, 7))
def test_attention_of_any_lengths_heads_and_widths(
    dtype: torch.dtype, drawn: list[tuple[int, int]], heads: int, d: int, filling: int
) -> None:
    lengths, rows = [length for length, _ in drawn], [row for _, row in drawn]
    h, own = heads * d, stage_of(lengths, rows, filling, dtype)
    qkv = draw(sum(lengths) + filling, 3 * h, dtype=dtype)
    b_q = draw(4, 2 * h, dtype=dtype, seed=1)[:, h:]
    assert_close(fast(dtype).attend(qkv.clone(), b_q, own, heads), PLAIN.attend(qkv.clone(), b_q, own, heads))


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_a_long_text(dtype: torch.dtype) -> None:
    own = stage_of([600, 3], [0, 1], 5, dtype)
    qkv, b_q = draw(608, 3 * 64, dtype=dtype), draw(2, 64, dtype=dtype, seed=1)
    assert_close(fast(dtype).attend(qkv.clone(), b_q, own, 2), PLAIN.attend(qkv.clone(), b_q, own, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("own_gains", [False, True])
@pytest.mark.parametrize("width", [1, 7, 16, 48, 100, 384])
def test_add_norm(dtype: torch.dtype, own_gains: bool, width: int) -> None:
    at = stage_of([5, 9], [2, 0], 2, dtype)
    y, x = draw(16, width, dtype=dtype), draw(16, width, dtype=dtype, seed=1)
    # Tables are slices of larger ones, like those of one layer in the bank.
    b = draw(3, 2, width, dtype=dtype, seed=2)[:, 1]
    gains = draw(3, 2, width, dtype=dtype, seed=3)[:, 1]
    gain = Gain(gains[0].contiguous(), gains, torch.arange(16) % 3 if own_gains else None)
    got = fast(dtype).add_norm(y.clone(), x, b, at, gain, 1e-5)
    assert_close(got, PLAIN.add_norm(y.clone(), x, b, at, gain, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 16, 100, 1536])
def test_add_activate(dtype: torch.dtype, width: int) -> None:
    at = stage_of([5, 9], [2, 0], 2, dtype)
    z, b = 3 * draw(16, width, dtype=dtype), draw(3, 2, width, dtype=dtype, seed=2)[:, 1]
    assert_close(fast(dtype).add_activate(z.clone(), b, at), PLAIN.add_activate(z.clone(), b, at))


def test_gelu_is_that_of_the_normal_distribution_everywhere() -> None:
    x = torch.cat([torch.linspace(-12, 12, 40_001), torch.tensor([0.0, -1e30, 1e30, math.inf, math.nan])])
    got = fast(torch.float32).add_activate(
        x[None].clone(), torch.zeros(1, len(x)), stage_of([1], [0], 0, torch.float32)
    )
    exact = x.double() * torch.special.ndtr(x.double())
    # The polynomial's error is below 5e-7; beyond 5 the rounding of the value itself counts, up to 12 * 6e-8 * a few.
    torch.testing.assert_close(got[0].double(), exact, rtol=5e-7, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_so_and_stays_in_its_sequence(dtype: torch.dtype, poison: float) -> None:
    own = stage_of([6, 20, 3], [0, 1, 0], 3, dtype)
    qkv, b_q = draw(32, 3 * 32, dtype=dtype), torch.zeros(2, 32, dtype=dtype)
    qkv[7] = poison
    context = fast(dtype).attend(qkv, b_q, own, 2)
    assert not torch.isfinite(context[6:26]).any()
    assert torch.isfinite(context[:6]).all()
    assert torch.isfinite(context[26:]).all()
    y = torch.zeros(32, 8, dtype=dtype)
    y[3, 2] = poison
    gain = Gain(torch.ones(8, dtype=dtype), torch.ones(1, 8, dtype=dtype), None)
    normed = fast(dtype).add_norm(y, torch.zeros_like(y), torch.zeros(2, 8, dtype=dtype), own, gain, 1e-12)
    assert normed[3].isnan().all()
    assert torch.isfinite(normed[torch.arange(32) != 3]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_has_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    lengths, rows = [3, 33, 17, 40], [1, 0, 2, 1]
    at, alone = stage_of(lengths, rows, 3, dtype), stage_of([17], [2], 7, dtype)
    qkv, b = draw(96, 3 * 48, dtype=dtype), draw(3, 48, dtype=dtype, seed=1)
    own = torch.cat([qkv[36:53], torch.zeros(7, 3 * 48, dtype=dtype)])
    kernels = fast(dtype)
    assert torch.equal(kernels.attend(qkv, b, at, 3)[36:53], kernels.attend(own, b, alone, 3)[:17])
    y, mine = qkv[:, :48].contiguous(), own[:, :48].contiguous()
    gain = Gain(b[0], b, None)
    among = kernels.add_norm(y.clone(), y, b, at, gain, 1e-12)
    assert torch.equal(among[36:53], kernels.add_norm(mine.clone(), mine, b, alone, gain, 1e-12)[:17])
    among = kernels.add_activate(y.clone(), b, at)
    assert torch.equal(among[36:53], kernels.add_activate(mine.clone(), b, alone)[:17])


@pytest.mark.nightly("builds")
def test_kept_where_it_was_built_and_found_again(tmp_path: Path) -> None:
    assert load_in_a_new_process(tmp_path) == "native\n"
    (kept,) = (tmp_path / "onebert").iterdir()
    built = kept.stat().st_mtime_ns
    assert load_in_a_new_process(tmp_path) == "native\n"
    assert kept.stat().st_mtime_ns == built
    kept.write_bytes(b"not a library")
    assert load_in_a_new_process(tmp_path) == "native\n"
    assert kept.stat().st_mtime_ns != built


@pytest.mark.nightly("builds")
def test_a_folder_that_cannot_be_written_only_costs_the_time_to_compile(tmp_path: Path) -> None:
    (tmp_path / "onebert").write_text("a file where the folder should be")
    assert load_in_a_new_process(tmp_path) == "native\n"


@pytest.mark.nightly("builds")
def test_compiled_code_is_taken_from_a_cache_that_nobody_else_can_write(tmp_path: Path) -> None:
    assert load_in_a_new_process(tmp_path) == "native\n"
    (library,) = (tmp_path / "onebert").glob("*.so")
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


def test_without_a_compiler_plain_kernels_take_over_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    library.find_library.cache_clear()
    native.load_native.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert [native.load_native("cpu", dtype) for dtype in DTYPES] == [None, None]
    finally:
        library.find_library.cache_clear()
        native.load_native.cache_clear()
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


def test_without_memory_to_work_in_a_call_fails_and_the_process_lives() -> None:
    """A sequence so long that its keys and values alone take ten times the memory that the process may have."""
    code = """
import resource, torch
from onebert_encoder.compute.kernels.native import load_native
from onebert_encoder.layout.dropout import NO_DROPOUT
from stages import stage_of
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
