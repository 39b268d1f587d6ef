"""Demands of a block on its hosts: the uses of their rows, and the work of its sequences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.block import Block
from onebert_server.engine.host import Host
from onebert_server.engine.queue.waiting import WAITING


def hold(hosts: Sequence[Host], block: Block) -> NDArray[np.bool_]:
    """Counts a use of the row of each sequence; returns which rows are still there. See `Bank.hold`."""
    sequences, fresh = block.sequences, not block.requests["waits"].all()
    if len(hosts) == 1:
        return hosts[0].bank.hold(sequences["slot"], sequences["generation"], fresh)
    held = np.zeros(len(sequences), np.bool_)
    for host, own in by_host(np.repeat(block.requests["host"], block.requests["sequences"])):
        held[own] = hosts[host].bank.hold(sequences["slot"][own], sequences["generation"][own], fresh)
    return held


def waiting_rows(hosts: Sequence[Host], block: Block, places: Array) -> NDArray[Any]:
    """WAITING of the sequences of a block; `places`: of its requests in the table."""
    requests, sequences = block.requests, block.sequences
    counts, tokens = requests["sequences"], sequences["tokens"]
    of, rows = np.arange(len(requests)).repeat(counts), np.zeros(len(sequences), WAITING)
    rows["request"], rows["host"] = places[of], requests["host"][of]
    for name in ("slot", "second", "text", "tokens"):
        rows[name] = sequences[name]
    first = (counts.cumsum() - counts)[of]
    starts = tokens.cumsum() - tokens
    rows["position"], rows["start"] = np.arange(len(rows)) - first, starts - starts[first]
    rows["cost"] = rows["work"] = tokens
    for host, own in by_host(rows["host"]):
        if hosts[host].weight != 1.0:
            rows["work"][own] = hosts[host].work(tokens[own])
        # A request pays for what its own sequences do not share.
        if (rows["text"] != np.arange(len(rows)))[own].any():
            texts = of[own] << 32 | rows["text"][own]
            rows["cost"][own] = hosts[host].passes.costs(rows["slot"][own], tokens[own], texts)
    return rows


def by_host(hosts: Array) -> list[tuple[int, Any]]:
    """Returns each host with the index of what is its own."""
    if not len(hosts):
        return []
    if len(hosts) == 1 or (hosts == hosts[0]).all():
        return [(int(hosts[0]), slice(None))]
    return [(host, np.flatnonzero(hosts == host)) for host in np.unique(hosts).tolist()]
