"""Signals and memory of a process with all its children; processes that are not measured are stopped meanwhile."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """The ids of a process and its descendants, parents first; without /proc, of the process alone."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name stands in parentheses and may contain anything; after it come the state and the parent's id.
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
    """Memory of a process and its descendants, with shared pages divided among them (PSS); 0 if not reported."""
    total = 0
    for member in family(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{member}/smaps_rollup").read_text(encoding="utf-8").splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total
