"""The compiled CPU code: one library, built for this machine on first use, and kept for the next start.

The C++ in `cpu/` needs a C++20 compiler (GCC 11 or later) and nothing of PyTorch's. Where there is none PyTorch's own
operations compute instead (docs/decisions/0012-native-kernels.md).
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

logger = logging.getLogger("onebert.kernels")

_FOLDER = Path(__file__).with_name("cpu")
_SOURCES = tuple(sorted(_FOLDER.glob("*.cpp")))
_HEADERS = tuple(sorted(_FOLDER.glob("*.h")))
# GCC's names. Code of GCC calls the OpenMP library that PyTorch brings; code of Clang would need another one.
_COMPILERS = ("g++", "c++")
# Arithmetic stays IEEE's. Only errno and floating-point traps are given up, which would forbid vector code.
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
_TIMEOUT_SECONDS = 120
# The status where a token is not in the tables of the embeddings (forward.cpp).
_OUTSIDE = 2


def find_library() -> ctypes.CDLL | None:
    """The library, ready to be called; None, with a warning in the log, where it cannot be built."""
    try:
        return _library()
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the fast CPU kernels cannot be built (%s), so plain PyTorch is used", _reason(error))
        return None


def check_status(status: int, *_: object) -> None:
    """Turns the status that a compiled function returns, 0 for success, into an error.

    Raises:
        MemoryError: the function's working memory could not be had, and nothing was computed.
        IndexError: a token is not in the tables of the embeddings, and nothing was computed.
    """
    if status == _OUTSIDE:
        raise IndexError("a token is not in the base's vocabulary, or behind its last position")
    if status:
        raise MemoryError("there is no memory for a kernel to work in")


@cache
def _library() -> ctypes.CDLL:
    """The library for exactly this source, compiler and processor: from the cache, or compiled.

    Raises:
        OSError: no compiler is installed, or the library cannot be loaded.
        subprocess.SubprocessError: the compiler fails or takes too long.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"neither {' nor '.join(_COMPILERS)} is installed")
    cache_folder, name = _cache_folder(), f"kernels-{_fingerprint(compiler)}.so"
    if cache_folder is not None:
        with suppress(OSError):  # not in the cache, or damaged
            if _own_alone(cache_folder / name):
                return _opened(cache_folder / name)
    with tempfile.TemporaryDirectory(prefix="onebert-kernels-") as folder:
        built = _compile(compiler, Path(folder) / name)
        return _opened(built if cache_folder is None else _keep(built, cache_folder))


def _opened(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    if library.enable():
        raise OSError("the operating system keeps instructions of this processor from programs")
    return library


def _compile(compiler: str, library: Path) -> Path:
    objects = [str(library.with_name(f"{source.stem}.o")) for source in _SOURCES]
    for source, compiled in zip(_SOURCES, objects, strict=True):
        _run(compiler, *FLAGS, "-c", str(source), "-o", compiled)
    # Linked without -fopenmp: OpenMP's symbols are then found in the library that PyTorch has loaded, and both use its
    # threads.
    _run(compiler, "-shared", *objects, "-o", str(library))
    return library


def _keep(built: Path, cache_folder: Path) -> Path:
    """Moves the library into the cache and returns its new path; on a full disk, the path where it was built."""
    try:
        with tempfile.TemporaryDirectory(dir=cache_folder) as folder:
            copied = Path(shutil.copy(built, folder))
            copied.chmod(0o600)
            return copied.replace(cache_folder / built.name)
    except OSError as error:
        logger.info("the fast CPU kernels are not kept: %s", error.strerror)
        return built


def _cache_folder() -> Path | None:
    """A folder that only this user can write to, since its files are executed; None where there is none."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onebert"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _own_alone(folder) else None
    except (OSError, RuntimeError):  # the user has no home folder, or cannot write to it
        return None


def _own_alone(path: Path) -> bool:
    """Whether the path belongs to this user and nobody else can write to it."""
    about = path.stat()
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _fingerprint(compiler: str) -> str:
    version = _run(compiler, "--version")
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    parts = [
        *(source.read_text(encoding="utf-8") for source in (*_SOURCES, *_HEADERS)),
        version,
        *FLAGS,
        platform.machine(),
        flags,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS).stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return next(iter((error.stderr or "").strip().splitlines()), str(error))
    return str(error)
