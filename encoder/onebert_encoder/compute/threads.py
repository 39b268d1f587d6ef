"""How many threads one thread of this process computes with."""

import torch


def compute_with(threads: int) -> None:
    """Sets how many threads the calling thread computes with, whatever other threads set for themselves, now or later.

    `torch.set_num_threads` alone counts for the thread that calls it only until that thread first computes or asks for
    the number: then PyTorch gives it the number that any thread set last. Asking comes first here, so that nothing is
    left to come.
    """
    torch.get_num_threads()
    torch.set_num_threads(threads)
