"""Compiles the C++ in `cpu/`: sources, flags, and the instruction sets that a wheel has a library for.

Needs a C++20 compiler (GCC 11 or later), no PyTorch. This file imports neither the project nor its dependencies, since
the build of a wheel runs it alone (hatch_build.py).
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
# GCC's names. GCC's code calls the OpenMP library that PyTorch ships; Clang's code would need another one.
_COMPILERS = ("g++", "c++")
# Arithmetic stays IEEE. Only errno and floating-point traps are given up: they would prevent vector code.
FLAGS = ("-std=c++20", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
NATIVE = ("-march=native",)
WITHOUT_TILES = ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")
# Other machines have other versions of the compiler's libraries, or none, so a wheel's library links them statically.
PORTABLE = ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", "-s")
_TIMEOUT_SECONDS = 300


class Level(NamedTuple):
    """A set of instructions, by oneDNN's name; `needs` are the flags in Linux's /proc/cpuinfo that it requires."""

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
    """Name of a level's library beside the sources; it contains their digest, so another version's is never used."""
    return f"{level.name}_{digest(*level.flags, *PORTABLE)}.so"


def digest(*parts: str) -> str:
    """Digest of the sources, the flags and `parts`; 16 hexadecimal digits."""
    sources = [*(source.read_text(encoding="utf-8") for source in (*_SOURCES, *_HEADERS)), *FLAGS, *parts]
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16]


def find_compiler() -> str:
    """The path of the compiler; raises FileNotFoundError without one."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"neither {' nor '.join(_COMPILERS)} is installed")
    return compiler


def version_of(compiler: str) -> str:
    """The output of `--version`; raises OSError or subprocess.SubprocessError if the compiler fails."""
    return _run(compiler, "--version")


def compile_library(compiler: str, library: Path, machine: Sequence[str], linking: Sequence[str] = ()) -> Path:
    """Compiles `library`, beside its objects, by flags `machine`; raises OSError, subprocess.SubprocessError."""
    objects = [str(library.with_name(f"{library.stem}-{source.stem}.o")) for source in _SOURCES]
    for source, compiled in zip(_SOURCES, objects, strict=True):
        _run(compiler, *FLAGS, *machine, "-c", str(source), "-o", compiled)
    # Linked without -fopenmp, so OpenMP's symbols resolve to the library that PyTorch has loaded, and both use its
    # threads.
    _run(compiler, "-shared", *objects, "-o", str(library), *linking)
    return library


def reason(error: Exception) -> str:
    """One line for the log on a failed build or load."""
    if isinstance(error, subprocess.CalledProcessError):
        return next(iter((error.stderr or "").strip().splitlines()), str(error))
    return str(error)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS).stdout
