"""Makes this machine a lesser one for the tests and for what they start: `PROCESSOR=avx2 pytest …`.

PROCESSOR is a name in `compiler.LEVELS`, for which the own CPU kernels are compiled. PyTorch, oneDNN and numpy use AVX2
at most, and each process of pytest keeps to one core. To be called before numpy and PyTorch are imported.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

from onebert_encoder.compute.kernels import compiler

# What numpy has beyond AVX2 and this processor, too: it warns of other names.
FEATURES = """
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
print(*(name for name in __cpu_dispatch__ if __cpu_features__[name] and name.startswith(("X86_V4", "AVX512"))))
"""


def become(processor: str) -> None:
    if "LESSER_FLAGS" not in os.environ:
        [level] = [level for level in compiler.LEVELS[platform.machine()] if level.name == processor]
        features = subprocess.run([sys.executable, "-c", FEATURES], capture_output=True, text=True, check=True).stdout
        os.environ |= {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "NPY_DISABLE_CPU_FEATURES": features.strip(),
            "LESSER_FLAGS": " ".join(level.flags),
            # The g++ there adds these flags.
            "PATH": f"{Path(__file__).with_name('lesser_compiler')}{os.pathsep}{os.environ['PATH']}",
        }
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {cores[worker % len(cores)]})
