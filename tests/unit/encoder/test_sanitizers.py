"""The C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer: their own tests, run once more."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from onebert_encoder.compute.kernels import compiler, library
from stages import needs_kernels

HERE = [level.name for level in compiler.supported(platform.machine(), library._cpu_flags().split())]
pytestmark = [needs_kernels, pytest.mark.slow]

SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
SANITIZERS = ("libasan.so", "libubsan.so")
# Builds the library as the product does, with other flags, and runs the kernels' tests on it in the same process.
PROGRAM = f"""
import sys
import pytest
from onebert_encoder.compute.kernels import compiler, library
compiler.FLAGS, compiler.NATIVE = (*compiler.FLAGS, *{SANITIZE!r}), (sys.argv.pop(1),)
library._cache_folder = lambda: None
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", sys.argv[1], *sys.argv[2:]]))
"""


def run_sanitized(processor: str, selected: str) -> subprocess.CompletedProcess[str]:
    libraries = [
        subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in SANITIZERS
    ]
    # Leaks are not checked, since Python itself frees some memory only when its process ends.
    environment = {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1"}
    tests = [
        str(Path(__file__).with_name(name))
        for name in (
            *("test_kernels.py", "test_branches.py", "test_quantized.py", "test_forward.py"),
            *("test_training_kernels.py", "test_trained_linear.py"),
        )
    ]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, f"-march={processor}", selected, *tests],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[3],
    )


def needs(level: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(level not in HERE, reason="instructions that this processor lacks")


@pytest.mark.parametrize(
    "processor",
    ["native", pytest.param("x86-64-v3", marks=needs("avx2")), pytest.param("x86-64-v4", marks=needs("avx512"))],
)
def test_the_kernels_touch_no_memory_of_others_and_do_nothing_undefined(processor: str) -> None:
    """Also with registers of eight lanes, which most processors have, and without instructions for bytes."""
    done = run_sanitized(
        processor,
        "attention or add_ or finite or bits or product or large or gelu or branch or mixture or share or norm "
        "or dropout",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
