"""The kernels for CPUs in C++: compiled when first needed, cached, and used only if they agree with the plain ones.

The C++ beside this file needs a C++20 compiler (GCC 10 or later) and nothing of PyTorch; its loops run on the OpenMP
threads that PyTorch has loaded. Without a compiler the plain kernels compute (docs/decisions/0012-native-kernels.md).
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.check import matches_plain
from onebert_encoder.compute.kernels.protocol import Gain
from onebert_encoder.layout.branches import Branches, Joined, LayerSite, Sparse, join
from onebert_encoder.layout.stage import Stage

logger = logging.getLogger("onebert.kernels")

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.cpp", "branches.cpp", "quantize.cpp"))
_HEADERS = tuple(Path(__file__).with_name(name) for name in ("numbers.h", "scratch.h"))
# GCC's names. Code of GCC calls the OpenMP library that PyTorch brings; code of Clang would need another one.
_COMPILERS = ("g++", "c++")
# Arithmetic stays IEEE's. Only errno and floating-point traps are given up, which would forbid vector code.
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
_TIMEOUT_SECONDS = 120

_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}
# The structs of branches.cpp have six 64-bit fields: start and stop of the span, and the four numbers of `native`.
_NUMBERS_OF_BRANCH = 6

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "attend": (_POINTER, _INT, _INT, _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _INT),
    "add_norm": (*[_POINTER] * 2, *[_INT] * 2, _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _FLOAT, _INT),
    "add_activate": (_POINTER, _INT, _INT, _POINTER, _INT, _POINTER, _INT),
    "add_low_rank": (_POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _INT),
    "add_sparse": (_POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _INT),
    "quantize": (_POINTER, _INT, _INT, _POINTER, _POINTER, _INT),
    "dequantize": (_POINTER, _INT, _INT, _POINTER, _POINTER, _INT),
}


class NativeKernels:
    """Kernels of one pass over memory each; sums are float32 in any dtype; attention has no padding.

    Args:
        library: the compiled kernels.
        dtype: float32 or bfloat16, of all activations, rows and branches.

    Raises:
        MemoryError: by every kernel, where its working memory cannot be had; nothing is computed then.
    """

    name = "native"
    batch_invariant = True

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        functions = {name: getattr(library, f"{name}_{_SUFFIX[dtype]}") for name in _SIGNATURES}
        for name, function in functions.items():
            function.argtypes, function.restype, function.errcheck = _SIGNATURES[name], ctypes.c_int, _check
        self._attend, self._add_norm, self._add_activate, *others = functions.values()
        self._add_low_rank, self._add_sparse, self._quantize, self._dequantize = others

    def attend(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """Each thread takes one head of one sequence at a time, whose scores fit into the processor's cache."""
        h = b_q.shape[1]
        out = qkv.new_empty(len(qkv), h)
        out[len(qkv) - stage.filling :] = 0
        self._attend(
            *(qkv.data_ptr(), h, num_heads, b_q.data_ptr(), b_q.stride(0), stage.row_of_token.data_ptr()),
            *(stage.edges.data_ptr(), len(stage.lengths), out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        """Writes into `y`."""
        own = gain.of_token is not None
        table = gain.table if own else gain.shared
        of_token = gain.of_token.data_ptr() if gain.of_token is not None else None
        self._add_norm(
            *(y.data_ptr(), x.data_ptr(), *y.shape, b.data_ptr(), b.stride(0), stage.row_of_token.data_ptr()),
            *(table.data_ptr(), table.stride(0), of_token, eps, torch.get_num_threads()),
        )
        return y

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """GELU, written into `z`."""
        self._add_activate(
            *(z.data_ptr(), *z.shape, b.data_ptr(), b.stride(0), stage.row_of_token.data_ptr()),
            torch.get_num_threads(),
        )
        return z

    def join(self, branches: Sequence[Branches], stage: Stage) -> Mapping[LayerSite, Sequence[Joined]]:
        """The spans of each site with their branches."""
        return join(branches.__getitem__, stage.spans)

    def add_branches(self, y: Tensor, x: Tensor, joined: Sequence[Joined]) -> Tensor:
        """Writes into `y`: one call for all low-rank branches and adapters, one for all sparse branches."""
        low_rank, sparse = array("q"), array("q")
        for start, stop, branches in joined:
            for branch in branches:
                (sparse if isinstance(branch, Sparse) else low_rank).extend((start, stop, *branch.native))
        for function, of_kind in ((self._add_low_rank, low_rank), (self._add_sparse, sparse)):
            if of_kind:
                address, numbers = of_kind.buffer_info()
                function(
                    *(address, numbers // _NUMBERS_OF_BRANCH, y.data_ptr(), y.shape[1], x.data_ptr(), x.shape[1]),
                    torch.get_num_threads(),
                )
        return y

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantizes each token over its own range: q [tokens, in] uint8 and (s, o) [tokens, 2], x = s (q - 128) - o."""
        q, ranges = torch.empty(x.shape, dtype=torch.uint8), torch.empty(len(x), 2)
        self._quantize(x.data_ptr(), *x.shape, q.data_ptr(), ranges.data_ptr(), torch.get_num_threads())
        return q, ranges

    def dequantize(self, y: Tensor, ranges: Tensor, sums: Tensor) -> Tensor:
        """Turns y = W (q - 128) [tokens, out] into W x, in place; `sums` [out] are the sums of the rows of W."""
        self._dequantize(y.data_ptr(), *y.shape, ranges.data_ptr(), sums.data_ptr(), torch.get_num_threads())
        return y


def _check(status: int, *_: object) -> None:
    """Turns the status that a kernel returns, 0 for success, into an error.

    Raises:
        MemoryError: the kernel's working memory could not be had, and nothing was computed.
    """
    if status:
        raise MemoryError("there is no memory for a kernel to work in")


@cache
def load_native(device: str, dtype: torch.dtype) -> NativeKernels | None:
    """The kernels for a dtype; None, with a warning in the log, where they cannot be built or are wrong."""
    if device != "cpu" or dtype not in _SUFFIX:
        return None
    try:
        kernels = NativeKernels(_library(), dtype)
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        logger.warning("the fast CPU kernels cannot be built (%s), so plain PyTorch is used", _reason(error))
        return None
    if not matches_plain(kernels, torch.device(device), dtype):
        logger.warning("the fast CPU kernels give wrong numbers on this machine, so plain PyTorch is used")
        return None
    return kernels


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
                return ctypes.CDLL(str(cache_folder / name))
    with tempfile.TemporaryDirectory(prefix="onebert-kernels-") as folder:
        built = _compile(compiler, Path(folder) / name)
        return ctypes.CDLL(str(built if cache_folder is None else _keep(built, cache_folder)))


def _compile(compiler: str, library: Path) -> Path:
    objects = [str(library.with_name(f"{source.stem}.o")) for source in _SOURCES]
    for source, compiled in zip(_SOURCES, objects, strict=True):
        _run(compiler, *_FLAGS, "-c", str(source), "-o", compiled)
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
        *_FLAGS,
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
