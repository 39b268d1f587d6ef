"""Loads PyTorch's libraries while other modules are imported."""

import ctypes
import os
import threading
from importlib.util import find_spec
from pathlib import Path


def load_torch_ahead() -> None:
    """Begins to load PyTorch's libraries on a thread: a fifth of the time of `import torch`, which then finds them.

    An import holds the interpreter's lock while the linker works; a call of the system's `dlopen` does not. If the call
    fails, `import torch` loads them as usual.
    """
    torch, system = find_spec("torch"), ctypes.CDLL(None)
    if torch is not None and torch.origin is not None and hasattr(system, "dlopen"):
        library = Path(torch.origin).parent / "lib" / "libtorch_python.so"
        threading.Thread(target=system.dlopen, args=[os.fsencode(library), os.RTLD_NOW], daemon=True).start()
