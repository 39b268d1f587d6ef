"""The results of a run as a JSON file: every repetition, the comparisons, and the machine."""

import json
import os
import platform
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from onebert_bench.compute import measured_dtypes
from onebert_bench.suite.measure import Outcome, Settings
from onebert_bench.suite.over_http import HttpOutcome
from onebert_bench.suite.parts.parts import Part
from onebert_bench.suite.peers.workers import Json
from onebert_bench.suite.scenes import DTYPES, Scene


@dataclass
class Results:
    """The results of a whole run.

    Attributes:
        tokens: tokens in the batch of each scene.
        versions: version of every package in every environment.
    """

    machine: Json
    real_texts: bool
    scenes: list[tuple[Scene, list[Outcome]]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    http: list[HttpOutcome] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Writes the results as JSON."""
        found = {
            "machine": self.machine,
            "real_texts": self.real_texts,
            "scenes": [
                {
                    "kind": scene.kind,
                    "base": scene.base,
                    "mix": scene.mix,
                    "texts": scene.texts,
                    "tokens": self.tokens[scene.name],
                    "cases": [outcome.as_json() for outcome in outcomes],
                }
                for scene, outcomes in self.scenes
            ],
            "http": [outcome.as_json() for outcome in self.http],
            **{name: part.as_json() for name, part in self.parts.items()},
            "versions": self.versions,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def machine(settings: Settings) -> Json:
    """The machine, its settings and the date."""
    return {
        "name": machine_name(settings.device),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": platform.platform(terse=True),
        "device": torch.cuda.get_device_name(settings.device) if settings.device != "cpu" else "cpu",
        "threads": settings.threads,
        "repetitions": settings.repetitions,
        "left_out": [dtype for dtype in DTYPES if dtype not in measured_dtypes(settings.device)],
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def machine_name(device: str) -> str:
    """The machine's name in files: processor and cores, or the GPU."""
    what = torch.cuda.get_device_name(device) if device != "cpu" else f"{_processor()} {os.cpu_count()} cores"
    return re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
