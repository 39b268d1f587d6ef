"""Threads: each computes with the number that it was given, whatever the others are given."""

from concurrent.futures import ThreadPoolExecutor

import torch

from onebert_encoder.compute.threads import compute_with


def test_a_thread_computes_with_its_own_number_of_threads() -> None:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(compute_with, 3).result()
        other.submit(compute_with, 1).result()
        assert one.submit(torch.get_num_threads).result() == 3
        assert other.submit(torch.get_num_threads).result() == 1
