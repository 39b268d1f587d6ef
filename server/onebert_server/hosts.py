"""Loads the bases of the settings, each with an empty bank, in the precision that they mean on this device."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute.threads import compute_with
from onebert_encoder.maths.choose import rounds_alike
from onebert_encoder.maths.precision import fast_dtype, trusted
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.banks.uses import BankBytes, default_bank_bytes
from onebert_server.engine.host import Host
from onebert_server.settings import Settings
from onebert_store.errors import InvalidSettings

logger = logging.getLogger("onebert.hosts")

# Beside a GPU, by default.
MOST_FRONT_ENDS = 8

T = TypeVar("T")


def on_a_thread(threads: int, work: Callable[[], T]) -> T:
    """Runs heavy work on a temporary thread, so that its team of compute threads ends with it: see Engine."""
    with ThreadPoolExecutor(1, "onebert-opener", compute_with, (threads,)) as thread:
        return thread.submit(work).result()


def begin_loading(settings: Settings) -> Future[list[Host]]:
    """Begins `load_hosts` on a temporary thread with the engine's number of compute threads.

    oneDNN packs the weights, and kernels are checked, for that number.
    """
    thread = ThreadPoolExecutor(1, "onebert-opener", compute_with, (compute_threads(settings),))
    try:
        return thread.submit(load_hosts, settings)
    finally:
        thread.shutdown(wait=False)


def compute_threads(settings: Settings) -> int:
    """Returns the number of threads of a forward pass: the settings', else PyTorch's."""
    return settings.threads or torch.get_num_threads()


def load_hosts(settings: Settings) -> list[Host]:
    """Loads each base in the precision that the settings mean on this device, and an empty bank for it.

    The calling thread computes; the bases are prepared for that thread's number of compute threads.
    """
    bases = [_load(name, settings) for name in settings.base or (None,)]
    if len({base.spec.digest for base in bases}) < len(bases):
        raise InvalidSettings("ONEBERT_BASE: two of the bases are the same")
    bound = BankBytes(settings.bank_bytes or default_bank_bytes(bases[0].device), len(bases))
    return [Host(base, Bank(base, bound)) for base in bases]


def load_only_host(settings: Settings) -> Host:
    """Like `load_hosts`, for work on one base; raises InvalidSettings if the settings have several."""
    [host] = load_hosts(settings.model_copy(update={"base": (settings.only_base,)}))
    return host


def _load(name: str | None, settings: Settings) -> Base:
    device = device_for(settings.device)
    auto = settings.dtype == "auto"
    dtype = fast_dtype(device) if auto else getattr(torch, settings.dtype)
    if dtype == torch.bfloat16 != fast_dtype(device):
        logger.warning("this machine does not multiply bfloat16, so float32 is used, which is faster here and exact")
        dtype = torch.float32
    base = load_base(name, dtype=dtype, device=device, batch_invariant=settings.batch_invariant is True)
    if auto or settings.dtype == "int8":
        base = trusted(base)
    invariant = rounds_alike(base)
    if base.batch_invariant and not invariant:
        raise InvalidSettings(
            "ONEBERT_BATCH_INVARIANT: plain PyTorch rounds differently from batch to batch; the fast kernels, which do"
            " not, need a C++ compiler (on a GPU Triton) and a base with GELU or SiLU"
        )
    # On a CPU the fast kernels are batch-invariant as they are. On a GPU invariance costs time, so it is optional.
    if settings.batch_invariant == "auto" and invariant and base.device.type == "cpu":
        base = base.with_batch_invariance()
    return base


def front_ends_for(settings: Settings, device: torch.device) -> int:
    """The number of front ends; by default a device that is no CPU leaves half of the cores to them."""
    if settings.front_ends is not None:
        return settings.front_ends
    return 0 if device.type == "cpu" else min(MOST_FRONT_ENDS, (os.cpu_count() or 1) // 2)


def device_for(wanted: str) -> str:
    """Resolves ONEBERT_DEVICE: `auto` means a GPU if there is one, else the CPU; raises InvalidSettings."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidSettings("ONEBERT_DEVICE: there is no CUDA device here")
    return wanted
