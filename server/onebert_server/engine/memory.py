"""Process memory: freed blocks stay for the next batch; and the memory limit."""

import ctypes
import os
import platform
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
        if path.is_file() and (said := path.read_text(encoding="ascii").strip()).isdigit():
            limits.append(int(said))
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
