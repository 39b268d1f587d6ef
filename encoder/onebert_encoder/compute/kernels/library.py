"""Finds the compiled CPU code: a library from the wheel, or one built on first use and cached."""

import ctypes
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from onebert_encoder.compute.kernels import compiler

logger = logging.getLogger("onebert.kernels")

Signatures = Mapping[str, Sequence[Any]]

POINTER, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float

# Prefix of temporary folders; a later build removes the folder of a killed build.
_PREFIX, _LEFT_SECONDS = "onebert-kernels-", 3600
# Status for a token outside the embedding tables (forward.cpp).
_OUTSIDE = 2


class RefusedInstructionsError(OSError):
    """The operating system does not let programs use this processor's matrix registers."""


class Library(ctypes.CDLL):
    """A compiled library (`level`, None: built here); raises RefusedInstructionsError, OSError."""

    def __init__(self, path: Path, level: str | None) -> None:
        super().__init__(str(path))
        if self.enable():
            raise RefusedInstructionsError("the operating system keeps instructions of this processor from programs")
        self.level = level


@cache
def find_library() -> Library | None:
    """The best library for this machine, or None with a warning; cached, since a failing build may take minutes."""
    try:
        return _of_wheel() or _built_here()
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the fast CPU kernels cannot be built (%s), so plain PyTorch is used", compiler.reason(error))
        return None


def functions_of(library: ctypes.CDLL, signatures: Signatures, form: str = "{}") -> dict[str, Callable[..., int]]:
    """Compiled functions, named by `form`, such as `product_{}`; each raises the errors of `check_status`."""
    functions = {name: getattr(library, form.format(name)) for name in signatures}
    for name, function in functions.items():
        function.argtypes, function.restype, function.errcheck = signatures[name], ctypes.c_int, check_status
    return functions


def check_status(status: int, *_: object) -> None:
    """Raises MemoryError or, for a token outside the embedding tables, IndexError; nothing was computed then."""
    if status == _OUTSIDE:
        raise IndexError("a token is not in the base's vocabulary, or behind its last position")
    if status:
        raise MemoryError("there is no memory for a kernel to work in")


def _of_wheel() -> Library | None:
    for level in compiler.supported(platform.machine(), _cpu_flags().split()):
        path = compiler.FOLDER / compiler.file_name(level)
        if path.exists():
            try:
                return Library(path, level.name)
            except OSError as error:
                logger.warning("the CPU kernels for %s are not used: %s", level.name, error)
    return None


def _built_here() -> Library:
    compiler_path = compiler.find_compiler()
    try:
        return _built_with(compiler_path, compiler.NATIVE)
    except RefusedInstructionsError as error:
        logger.warning("the fast CPU kernels are compiled without matrix registers: %s", error)
        return _built_with(compiler_path, (*compiler.NATIVE, *compiler.WITHOUT_TILES))


def _built_with(compiler_path: str, flags: tuple[str, ...]) -> Library:
    """The library for exactly this source, compiler, processor and flags: from the cache, or compiled."""
    about = (*flags, compiler.version_of(compiler_path), platform.machine(), _cpu_flags() or platform.processor())
    cache_folder, name = _cache_folder(), f"kernels-{compiler.digest(*about)}.so"
    if cache_folder is not None:
        try:
            if _own_alone(cache_folder / name):
                return Library(cache_folder / name, None)
        except RefusedInstructionsError:
            raise
        except OSError:  # not in the cache, or damaged
            pass
    _remove_left_over([Path(tempfile.gettempdir()), *([cache_folder] if cache_folder else [])])
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        built = compiler.compile_library(compiler_path, Path(folder) / name, flags)
        return Library(built if cache_folder is None else _keep(built, cache_folder), None)


def _remove_left_over(folders: Sequence[Path]) -> None:
    for left in chain.from_iterable(folder.glob(f"{_PREFIX}*") for folder in folders):
        with suppress(OSError):  # another user's
            if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                shutil.rmtree(left)


def _cpu_flags() -> str:
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    return next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")


def _keep(built: Path, cache_folder: Path) -> Path:
    try:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=cache_folder) as folder:
            copied = Path(shutil.copy(built, folder))
            copied.chmod(0o600)
            return copied.replace(cache_folder / built.name)
    except OSError as error:
        logger.info("the fast CPU kernels are not cached: %s", error.strerror)
        return built


def _cache_folder() -> Path | None:
    """A folder that only this user can write to, since its files are executed; None if that fails."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onebert"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _own_alone(folder) else None
    except (OSError, RuntimeError):  # the user has no home folder, or cannot write to it
        return None


def _own_alone(path: Path) -> bool:
    about = path.stat()
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022
