"""Stopping and continuing a process with all its children, so that what is not measured takes no processor time."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and all that descend from it, parents first; where there is no /proc, itself alone."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name stands in parentheses and may hold anything; behind it come the state and the parent.
            parent = int(status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    return list(_walk(pid, children))


def _walk(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, []):
        yield from _walk(child, children)


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Sends a signal to those of the processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def memory_bytes(pid: int) -> int:
    """What a process and its descendants hold of the memory, shared pages counted in parts; 0 where it is not told."""
    total = 0
    for member in family(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{member}/smaps_rollup").read_text(encoding="utf-8").splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total
