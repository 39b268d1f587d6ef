"""How many threads one thread of this process computes with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def compute_with(threads: int) -> None:
    """Sets how many threads the calling thread computes with, whatever other threads set for themselves, now or later.

    `torch.set_num_threads` alone counts for the thread that calls it only until that thread first computes or asks for
    the number: then PyTorch gives it the number that any thread set last. Asking comes first here, so that nothing is
    left to come.
    """
    torch.get_num_threads()
    torch.set_num_threads(threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets the calling thread compute alone in the block.

    For decompositions of small matrices: LAPACK divides each of many short steps among its threads, which wait for each
    other after every one. On two busy cores the eigenvectors of 384 x 384 numbers took 4 seconds so, and 8 ms alone.
    """
    threads = torch.get_num_threads()
    compute_with(1)
    try:
        yield
    finally:
        compute_with(threads)
