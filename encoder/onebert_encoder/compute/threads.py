"""Sets the number of threads that one thread of this process computes with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def compute_with(threads: int) -> None:
    """Sets the calling thread's number of compute threads; other threads' settings do not change it later.

    `torch.set_num_threads` alone lasts only until the calling thread first computes or reads the number: then PyTorch
    replaces it by the number that any thread set last. Reading the number first prevents that.
    """
    torch.get_num_threads()
    torch.set_num_threads(threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """The calling thread computes alone in the block.

    LAPACK splits each of many short steps of a small decomposition among its threads, and synchronizes them after each.
    On two busy cores the eigenvectors of a 384 x 384 matrix took 4 seconds that way, and 8 ms with one thread.
    """
    threads = torch.get_num_threads()
    compute_with(1)
    try:
        yield
    finally:
        compute_with(threads)
