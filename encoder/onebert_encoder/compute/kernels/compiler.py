"""How the C++ in `cpu/` is compiled: sources, flags, and the levels of instructions that a wheel has a library for.

It needs a C++20 compiler (GCC 11 or later) and nothing of PyTorch's. This file imports nothing of the project or of its
dependencies, since the build of a wheel runs it by itself (hatch_build.py).
"""

import hashlib
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("cpu")
_SOURCES = tuple(sorted(FOLDER.glob("*.cpp")))
_HEADERS = tuple(sorted(FOLDER.glob("*.h")))
# GCC's names. Code of GCC calls the OpenMP library that PyTorch brings; code of Clang would need another one.
_COMPILERS = ("g++", "c++")
# Arithmetic stays IEEE's. Only errno and floating-point traps are given up, which would forbid vector code.
FLAGS = ("-std=c++20", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
NATIVE = ("-march=native",)
WITHOUT_TILES = ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")
# A wheel comes to machines with other versions of the compiler's libraries, or without: they are linked into it.
PORTABLE = ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", "-s")
_TIMEOUT_SECONDS = 300


class Level(NamedTuple):
    """A set of instructions.

    Attributes:
        name: as oneDNN calls it.
        flags: the compiler's.
        needs: what Linux lists in /proc/cpuinfo where the processor has these instructions and programs may use them.
    """

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_AVX2 = Level("avx2", ("-march=x86-64-v3",), frozenset(("avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe")))
_AVX512 = Level(
    "avx512", ("-march=x86-64-v4",), _AVX2.needs | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
)
_VNNI = Level("avx512_vnni", (*_AVX512.flags, "-mavx512vnni"), _AVX512.needs | {"avx512_vnni"})
_BF16 = Level("avx512_bf16", (*_VNNI.flags, "-mavx512bf16"), _VNNI.needs | {"avx512_bf16"})
_AMX = Level(
    "amx", (*_BF16.flags, "-mamx-tile", "-mamx-bf16", "-mamx-int8"), _BF16.needs | {"amx_tile", "amx_bf16", "amx_int8"}
)
_NEON = Level("neon", ("-march=armv8-a",), frozenset(("asimd",)))

LEVELS = {"x86_64": (_AMX, _BF16, _VNNI, _AVX512, _AVX2), "aarch64": (_NEON,)}
"""By architecture (`platform.machine()`), the best first."""


def supported(machine: str, cpu_flags: Collection[str]) -> list[Level]:
    """The levels of a processor with these flags, the best first."""
    return [level for level in LEVELS.get(machine, ()) if level.needs <= set(cpu_flags)]


def file_name(level: Level) -> str:
    """A level's library beside the sources, named for their content: it is never taken for that of other sources."""
    return f"{level.name}_{digest(*level.flags, *PORTABLE)}.so"


def digest(*others: str) -> str:
    """Of the sources, the flags, and whatever else a library depends on; 16 hexadecimal digits."""
    parts = [*(source.read_text(encoding="utf-8") for source in (*_SOURCES, *_HEADERS)), *FLAGS, *others]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def find_compiler() -> str:
    """The path of the compiler.

    Raises:
        FileNotFoundError: none is installed.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"neither {' nor '.join(_COMPILERS)} is installed")
    return compiler


def version_of(compiler: str) -> str:
    """What the compiler says of itself.

    Raises:
        OSError: it cannot be run.
        subprocess.SubprocessError: it fails.
    """
    return _run(compiler, "--version")


def compile_library(compiler: str, library: Path, machine: Sequence[str], linking: Sequence[str] = ()) -> Path:
    """Writes the shared library at a path, beside its objects, and returns the path.

    Args:
        compiler: its path.
        library: where to write.
        machine: flags that say which instructions may be used.
        linking: more flags for the linker.

    Raises:
        OSError: the compiler cannot be run.
        subprocess.SubprocessError: the compiler fails or takes too long.
    """
    objects = [str(library.with_name(f"{library.stem}-{source.stem}.o")) for source in _SOURCES]
    for source, compiled in zip(_SOURCES, objects, strict=True):
        _run(compiler, *FLAGS, *machine, "-c", str(source), "-o", compiled)
    # Linked without -fopenmp: OpenMP's symbols are then found in the library that PyTorch has loaded, and both use its
    # threads.
    _run(compiler, "-shared", *objects, "-o", str(library), *linking)
    return library


def reason(error: Exception) -> str:
    """Why a library could not be built or loaded, in one line."""
    if isinstance(error, subprocess.CalledProcessError):
        return next(iter((error.stderr or "").strip().splitlines()), str(error))
    return str(error)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS).stdout
