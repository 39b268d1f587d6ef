"""Measures scenes: each repetition runs every case once, in a new order, with all other processes stopped."""

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from statistics import median

import numpy as np

from onebert_bench.machine import memory_bytes
from onebert_bench.report import Json
from onebert_bench.suite.peers import ENTRIES, PEERS, PeerFailed, python_of
from onebert_bench.suite.scenes import FAN_OUT, Case, Scene
from onebert_bench.suite.workers import Worker
from onebert_bench.suite.workload import Workload
from onebert_encoder.text.tokens import Tokens

# Quicker runs are first made without timing, as many as fill `_WARM_MS`: a processor that waited takes about 20 ms
# until its caches and its clock are again what they are under load.
_UNTIMED_BELOW_MS, _WARM_MS = 500.0, 50.0
_TURN_MS = 150.0  # a quick run is repeated within its turn to fill this time; the median counts
_MOST_RUNS = 7

# Largest error, relative to the reference's largest logit (at least 1). bfloat16 rounds to 8 bits at each sum of a
# layer. int8 has no bound that holds for every base, so its error is only reported.
TOLERANCE: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 0.15}


@dataclass
class Outcome:
    """The measurements of one case.

    Attributes:
        ms: milliseconds of each repetition.
        error: largest difference from the reference's logits, relative as in `TOLERANCE`; None if not compared.
        note: the settings that the peer chose by itself.
        failed: the reason if the case failed.
        resident_bytes: memory of its process with all cases of the scene.
        anonymous_bytes: those of them that are not of mapped files, which the kernel may take back.
    """

    case: Case
    ms: list[float] = field(default_factory=list)
    error: float | None = None
    note: str = ""
    failed: str | None = None
    resident_bytes: int = 0
    anonymous_bytes: int = 0

    @property
    def wrong(self) -> bool:
        """Whether the logits differ from the reference's by more than `TOLERANCE`."""
        return self.error is not None and not self.error <= TOLERANCE.get(self.case.dtype, np.inf)

    @property
    def counts(self) -> bool:
        """Whether the case ran in every repetition and its answers are right."""
        return self.failed is None and not self.wrong

    def as_json(self) -> Json:
        """The outcome as JSON values, for the results file."""
        fields = asdict(self)
        return {"label": self.case.label, **fields.pop("case"), **fields}


@dataclass(frozen=True)
class Settings:
    """The settings of a whole run.

    Attributes:
        threads: threads of every process.
        repetitions: measurements behind each median.
        cache: folder for environments, and for files that peers read.
    """

    threads: int
    repetitions: int
    cache: Path


class Measurer:
    """Starts peers when they are first needed, and measures scenes with them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._workers: dict[str, Worker | PeerFailed] = {}

    def __enter__(self) -> "Measurer":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            if isinstance(worker, Worker):
                worker.close()

    @property
    def versions(self) -> dict[str, dict[str, str]]:
        """Every package of every environment that ran."""
        running = {name: worker for name, worker in self._workers.items() if isinstance(worker, Worker)}
        return {ENTRIES[name].environment: worker.versions for name, worker in running.items()}

    def measure(self, scene: Scene, workload: Workload) -> list[Outcome]:
        """Measures all cases of a scene; a peer that fails has an outcome, too."""
        outcomes = [Outcome(case) for case in scene.cases]
        tokens = batch(scene, workload)
        try:
            self._prepare(outcomes, [self._job(outcome.case, workload, tokens) for outcome in outcomes])
            self._repeat(outcomes)
            for outcome in outcomes:
                worker = self._workers[outcome.case.entry]
                if isinstance(worker, Worker):
                    kinds = (memory_bytes(worker.pid, kind) for kind in ("Rss", "Anonymous"))
                    outcome.resident_bytes, outcome.anonymous_bytes = kinds
        finally:
            for number, outcome in enumerate(outcomes):
                with suppress(PeerFailed):
                    self._ask(outcome.case.entry, do="drop", name=str(number))
        return outcomes

    def _job(self, case: Case, workload: Workload, tokens: Sequence[Tokens]) -> Json:
        """The arguments of `Job` in benchmarks/peers/worker.py."""
        chosen = tokens[: case.tasks] if case.fan_out else tokens
        shape = {name: getattr(case, name) for name in ("dtype", "resident", "shared", "rotate")}
        return shape | {
            "base": str(workload.folder),
            "tasks": [str(file) for file in workload.files(case.method, case.tasks)],
            "task_of": [i % case.tasks for i in range(len(chosen))],
            "ids": [text.input_ids for text in chosen],
            "type_ids": [text.type_ids for text in chosen],
            "threads": self._settings.threads,
            "work": str(self._settings.cache / "work"),
        }

    def _prepare(self, outcomes: Sequence[Outcome], jobs: Sequence[Json]) -> None:
        """Has every peer prepare its case, and compares its logits with the reference's."""
        references: dict[tuple[object, ...], np.ndarray] = {}
        for number, (outcome, job) in enumerate(zip(outcomes, jobs, strict=True)):
            case = outcome.case
            try:
                answer = self._ask(case.entry, do="prepare", name=str(number), job=job)
                outcome.note = answer["note"]
                if ENTRIES[case.entry].answers and not case.rotate:
                    key = (case.method, case.tasks, case.fan_out)
                    if key not in references:
                        plain = {**job, "dtype": "float32", "resident": 0, "shared": False}
                        prepared = self._ask("reference", do="prepare", name="reference", job=plain)
                        references[key] = np.array(prepared["logits"])
                    outcome.error = difference(answer["logits"], references[key], job["task_of"], case.checked)
            except PeerFailed as failure:
                outcome.failed = str(failure)

    def _repeat(self, outcomes: Sequence[Outcome]) -> None:
        order = list(range(len(outcomes)))
        shuffled = random.Random(0)  # noqa: S311 - an order, not a secret
        for _ in range(self._settings.repetitions):
            shuffled.shuffle(order)
            for number in order:
                outcome = outcomes[number]
                if outcome.failed is None:
                    try:
                        outcome.ms.append(self._turn(str(number), outcome))
                    except PeerFailed as failure:
                        outcome.failed = str(failure)

    def _turn(self, name: str, outcome: Outcome) -> float:
        """Milliseconds of one turn; the time before decides how often the case runs in it."""
        entry = outcome.case.entry
        before = outcome.ms[-1] if outcome.ms else self._ask(entry, do="run", name=name, untimed=0, timed=1)["ms"][0]
        timed = min(_MOST_RUNS, max(1, round(_TURN_MS / before)))
        untimed = ceil(_WARM_MS / before) if before < _UNTIMED_BELOW_MS else 0
        answer = self._ask(entry, do="run", name=name, untimed=untimed, timed=timed)
        return float(median(answer["ms"]))

    def _ask(self, entry: str, **request: object) -> Json:
        if entry not in self._workers:
            self._workers[entry] = self._start(entry)
        worker = self._workers[entry]
        if isinstance(worker, PeerFailed):
            raise worker
        return worker.ask(**request)

    def _start(self, entry: str) -> Worker | PeerFailed:
        cache = self._settings.cache
        for folder in ("logs", "work", "inductor"):
            (cache / folder).mkdir(parents=True, exist_ok=True)
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
        try:
            python = python_of(ENTRIES[entry].environment, cache / "environments")
            script, log = (PEERS / ENTRIES[entry].script, entry), cache / "logs" / f"{entry}.txt"
            return Worker(python, script, self._settings.threads, log, variables)
        except PeerFailed as failure:
            return failure


def batch(scene: Scene, workload: Workload) -> list[Tokens]:
    """The texts of a scene; for a fan-out, the text of median length, repeated for each task."""
    tokens = workload.tokens(scene.mix, scene.texts)
    return [sorted(tokens, key=len)[len(tokens) // 2]] * len(tokens) if scene.kind == FAN_OUT else tokens


def difference(logits: Sequence[Sequence[float]], reference: np.ndarray, task_of: Sequence[int], checked: int) -> float:
    """The largest difference of logits, for tasks below `checked`, relative to the largest logit (at least 1)."""
    counted = np.array(task_of) < checked
    worst = np.abs(np.array(logits)[counted] - reference[counted]).max()
    return float(worst / max(1.0, np.abs(reference[counted]).max()))
