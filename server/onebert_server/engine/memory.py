"""Process memory: its limit, freed blocks that stay for the next batch, and a garbage collector that comes seldom."""

import ctypes
import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Numbers from glibc's <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Freed blocks up to this size stay in the process; it exceeds any activation of a batch. Versions of glibc that refuse
# the first number take the second.
_KEPT_BYTES = (2**28, 2**25)


# Files with a container's memory limit, under version 2 and 1 of Linux's control groups.
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_limit() -> int:
    """Returns the bytes of memory that this process may use: the machine's, or its container's if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _GROUP_LIMITS:
        # Version 2 has "max" if there is no limit.
        if path.is_file() and (limit := path.read_text(encoding="ascii").strip()).isdigit():
            limits.append(int(limit))
    return min(limits)


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks instead of returning them to the kernel; other allocators do not change.

    By default the activations of every batch are mapped and zeroed anew, which takes a fifth of its time or more. One
    arena, because glibc unmaps the heaps of further arenas whenever they are empty. Call it before there are threads.
    """
    libc = _glibc()
    if libc is not None and any(libc.mallopt(_MMAP_THRESHOLD, size) for size in _KEPT_BYTES):
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Returns the free memory to the kernel once, such as the memory that only loading needed."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


# New objects, minus freed ones, that trigger a collection; Python's default is 700. A few dozen waiting requests exceed
# 700 and contain no garbage. A collection at this number takes less than a millisecond.
YOUNG = 10_000


def collect_seldom() -> None:
    """Freezes the objects that exist after all imports and loading, and makes later collections rarer.

    The collector would walk these 250,000 objects, which live as long as the process, again and again; each walk would
    block all answers for some tenths of a second.
    """
    gc.freeze()
    gc.set_threshold(YOUNG)


@contextmanager
def importing() -> Iterator[None]:
    """Pauses the collector during large imports, then freezes their objects: this saves half a second of a start."""
    with collecting_nothing():
        yield
        gc.freeze()


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Pauses the collector while millions of objects are created that all stay in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
