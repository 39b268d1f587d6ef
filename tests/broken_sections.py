"""A section of `make bench-gpu` that fails in every way; imported by name in the process that runs it."""

import os
import time

from onebert_bench.gpu.made import Made
from onebert_bench.report import Section


def broken(name: str, made: Made) -> Section:
    if name == "hangs":
        time.sleep(600)
    if name == "dies":
        os._exit(7)
    if name == "raises":
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")
    return Section(name, "", ("process",), [[os.getpid()]])
