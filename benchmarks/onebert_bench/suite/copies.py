"""A part of a run: five tasks on one base in one process, beside processes with five copies of the whole model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onebert_bench.numbers import Spread, ratio
from onebert_bench.report import Cell, Section
from onebert_bench.suite.measure import Measurer, Outcome, Settings
from onebert_bench.suite.peers import ENTRIES
from onebert_bench.suite.scenes import MIXED, OTHERS, Case, Scene
from onebert_bench.suite.workload import Workload

TASKS = 5
CASES = tuple(Case(entry, "float32", tasks=TASKS) for entry in ("ours", "transformers_swapped", "onnx_swapped"))


def five_tasks(settings: Settings, workloads: Mapping[str, Workload]) -> Section:
    """Measures each base with processes of its own."""
    return copies_section({base: _measure(settings, workloads[base], base) for base in OTHERS})


def _measure(settings: Settings, workload: Workload, base: str) -> Sequence[Outcome]:
    scene = Scene("five tasks", base, "sst2", MIXED, CASES)
    # ONNX Runtime's files are made by a process that ends before the memory of another is looked at.
    with Measurer(replace(settings, repetitions=0)) as measurer:
        measurer.measure(replace(scene, cases=CASES[-1:]), workload)
    with Measurer(settings) as measurer:
        return measurer.measure(scene, workload)


def copies_section(outcomes_by_base: Mapping[str, Sequence[Outcome]]) -> Section:
    """A line for each process, with OneBERT's part of the others' memory and time."""
    rows: list[list[Cell]] = []
    for base, outcomes in outcomes_by_base.items():
        ours = outcomes[0]
        for outcome in outcomes:
            title = ENTRIES[outcome.case.entry].title
            if not (outcome.counts and ours.counts):
                rows.append([base, title, f"failed: {outcome.failed or 'wrong answers'}", *[None] * 5])
                continue
            time, part = ratio(ours.ms, outcome.ms), ours.resident_bytes / outcome.resident_bytes
            resident, unmapped = outcome.resident_bytes, outcome.anonymous_bytes
            memory = (f"{resident / 1e6:.0f}", part, f"{unmapped / 1e6:.0f}", ours.anonymous_bytes / unmapped)
            rows.append([base, title, Spread.of(outcome.ms), time, *memory])
    header = ("base", "process", "ms", "ours, relative", "resident, MB", "ours", "without mapped files, MB", "ours")
    about = (
        f"{MIXED} texts (sst2), spread over {TASKS} BitFit tasks, float32; the texts of a copy are one padded batch. "
        "Mapped weights are resident, too, once for each copy."
    )
    numbers = {base: [outcome.as_json() for outcome in outcomes] for base, outcomes in outcomes_by_base.items()}
    return Section("Five tasks, or five copies", about, header, rows, numbers)
