"""Demands of a block on its hosts: the uses of their rows, and the work of its sequences."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.block import Block
from onebert_server.engine.host import Host
from onebert_server.engine.queue.waiting import WAITING, Texts


def waiting_texts(hosts: Sequence[Host], block: Block, places: Array, first: int) -> Texts:
    """Returns the sequences of a block; `places`: of its requests in the table. `first`: number of its first text."""
    requests, sequences = block.requests, block.sequences
    counts, tokens = requests["sequences"], sequences["tokens"]
    rows = np.zeros(len(sequences), WAITING)
    rows["request"] = places.repeat(counts)
    rows["position"] = np.arange(len(rows)) - (counts.cumsum() - counts).repeat(counts)
    rows["slot"], rows["second"] = sequences["slot"], sequences["second"]
    rows["tokens"] = rows["cost"] = rows["work"] = tokens
    rows["text"] = sequences["text"]
    rows["text"] += first
    # Texts that differ have numbers in their order.
    shares = (sequences["text"] != np.arange(len(rows))).any()
    if len(hosts) > 1:
        rows["host"] = requests["host"].repeat(counts)
    for index, of_host in by_host(hosts, rows):
        host = hosts[index]
        if host.weight != 1.0:
            rows["work"][of_host] = host.work(tokens[of_host])
        if shares:
            # A request pays for what its own sequences do not share.
            texts = rows["request"][of_host].astype(np.int64) << 32 | sequences["text"][of_host]
            rows["cost"][of_host] = host.passes.costs(rows["slot"][of_host], tokens[of_host], texts)
    return Texts(rows, block.ids)


def hold(hosts: Sequence[Host], rows: NDArray[Any], generations: Array, fresh: bool) -> NDArray[np.bool_]:
    """Counts a use of the bank's row of each of some WAITING rows; returns which are still there. See `Bank.hold`."""
    held = np.empty(len(rows), np.bool_)
    for host, of_host in by_host(hosts, rows):
        held[of_host] = hosts[host].bank.hold(rows["slot"][of_host], generations[of_host], fresh)
    return held


def let_go(hosts: Sequence[Host], rows: NDArray[Any]) -> None:
    """Ends the uses of WAITING rows; see `Bank.let_go`."""
    for host, of_host in by_host(hosts, rows):
        hosts[host].bank.let_go(rows["slot"][of_host])


def by_host(hosts: Sequence[Host], rows: NDArray[Any]) -> Iterable[tuple[int, Any]]:
    """Returns each host with the index of its WAITING rows."""
    if len(hosts) == 1:
        return ((0, slice(None)),)
    return [(host, rows["host"] == host) for host in np.unique(rows["host"]).tolist()]
