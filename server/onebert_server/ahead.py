"""Loads torch's libraries while a start imports what needs no torch."""

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

_NOW = 2


def load_torch_ahead() -> None:
    """Begins to load torch's libraries on another thread, which takes 0.2 seconds of a processor.

    A foreign call, because Python's own import holds its lock while the system loads a library.
    """
    found = find_spec("torch")
    if sys.platform == "linux" and "torch" not in sys.modules and found is not None and found.origin is not None:
        library = Path(found.origin).with_name("lib") / "libtorch_cpu.so"
        # An error is left to the import, which raises it where it is reported.
        Thread(target=ctypes.CDLL(None).dlopen, args=(bytes(library), _NOW), daemon=True).start()
