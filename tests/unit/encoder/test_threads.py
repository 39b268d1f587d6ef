"""Threads: each computes with the number that it was given, whatever the others are given."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import torch

from onebert_encoder.compute.threads import compute_with, one_thread


def test_a_thread_computes_with_its_own_number_of_threads() -> None:
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as other:
        pool.submit(compute_with, 3).result()
        other.submit(compute_with, 1).result()
        assert pool.submit(torch.get_num_threads).result() == 3
        assert other.submit(torch.get_num_threads).result() == 1


def test_a_block_on_one_thread_gives_the_others_back() -> None:
    def inside_and_after() -> tuple[int, int]:
        compute_with(3)
        with contextlib.suppress(ValueError), one_thread():
            inside = torch.get_num_threads()
            raise ValueError
        return inside, torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside_and_after).result() == (1, 3)
