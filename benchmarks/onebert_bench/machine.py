"""The machine, and processes with all their children: signals, memory, processor time."""

import multiprocessing
import os
import platform
import re
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch

from onebert_bench.report import Json
from onebert_encoder.compute.kernels.compiler import supported


def machine(device: str) -> Json:
    """The machine and the date."""
    name, extensions = processor(), instructions()
    gpu = torch.cuda.get_device_name(device) if device != "cpu" else None
    return {
        # Of its files.
        "name": re.sub(r"[^a-z0-9]+", "-", (gpu or f"{name} {extensions} {os.cpu_count()} cores").lower()).strip("-"),
        "processor": name,
        "instructions": extensions,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": platform.platform(terse=True),
        "device": gpu or "cpu",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def processor() -> str:
    """The processor's name."""
    return _cpu("model name") or platform.processor() or platform.machine()


def instructions() -> str:
    """The best set of instructions that OneBERT has products for and this processor computes, by oneDNN's name."""
    levels = supported(platform.machine(), (_cpu("flags") or _cpu("Features")).split())
    return levels[0].name if levels else platform.machine()


def _cpu(field: str) -> str:
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "")


def conditions() -> str:
    """The cores and the load of this machine, for the line below a table."""
    return f"{os.cpu_count()} cores ({platform.machine()}), load average {os.getloadavg()[0]:.1f}"


def process() -> ProcessPoolExecutor:
    """A process of its own, which has used no memory and no threads yet."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def family(pid: int) -> list[int]:
    """The ids of a process and its descendants, parents first; without /proc, of the process alone."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name stands in parentheses and may contain anything; after it come the state and the parent's id.
            parent = int(status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    members = [pid]
    for member in members:
        members += children.get(member, [])
    return members


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Sends a signal to those of the processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def memory_bytes(pid: int, kind: str = "Pss") -> int:
    """Memory of a process and its descendants, by default with shared pages divided (PSS); 0 if not reported."""
    total = 0
    for member in family(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{member}/smaps_rollup").read_text(encoding="utf-8").splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))
    return total


def resident_bytes(files: bool = True) -> int:
    """This process's resident memory, also without mapped files, such as the file of the weights."""
    resident, shared = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3])
    return (resident if files else resident - shared) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time that a process and its descendants have taken."""
    ticks = 0
    for member in family(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
