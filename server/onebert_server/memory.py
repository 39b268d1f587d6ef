"""How the process keeps memory: what a batch has freed is there for the next one."""

import ctypes
import platform

# As glibc's <malloc.h> numbers them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Above the largest activation of a batch; tables of the bank and weights that are larger still go back when freed.
_KEPT_BYTES = 2**28


def keep_freed_memory() -> None:
    """Lets glibc keep freed blocks instead of giving them back to the kernel; other allocators are left as they are.

    By default every batch's activations are mapped and zeroed anew, a fifth of its time and more. One arena, because
    the heaps of further arenas are unmapped whenever they are empty. To be called before there are threads.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for parameter, value in ((_MMAP_THRESHOLD, _KEPT_BYTES), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1)):
            libc.mallopt(parameter, value)
