"""How the process keeps memory: what a batch has freed is there for the next one; and how much there is."""

import ctypes
import os
import platform
from pathlib import Path

# As glibc's <malloc.h> numbers them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Blocks up to this size are kept when they are freed. The first is larger than any activation of a batch; versions of
# glibc that refuse it take the second.
_KEPT_BYTES = (2**28, 2**25)


# Where a container's limit stands, under version 2 and 1 of Linux's control groups.
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_limit() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's where that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _GROUP_LIMITS:
        # Version 2 says "max" where there is no limit.
        if path.is_file() and (said := path.read_text(encoding="ascii").strip()).isdigit():
            limits.append(int(said))
    return min(limits)


def keep_freed_memory() -> None:
    """Lets glibc keep freed blocks instead of giving them back to the kernel; other allocators are left as they are.

    By default every batch's activations are mapped and zeroed anew, a fifth of its time and more. One arena, because
    the heaps of further arenas are unmapped whenever they are empty. To be called before there are threads.
    """
    libc = _glibc()
    if libc is not None and any(libc.mallopt(_MMAP_THRESHOLD, size) for size in _KEPT_BYTES):
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Returns once what is free now, such as what only loading needed."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
