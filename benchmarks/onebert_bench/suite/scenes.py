"""Scenes: cases that are measured in turns on the same texts and stand in one table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from onebert_bench.suite.peers import ENTRIES
from onebert_bench.suite.workload import METHODS
from onebert_bench.workload import BERT_BASE, MINILM, MODERN_BERT, MPNET

DTYPES = ("float32", "bfloat16")
FAN_OUT = "fan-out"
FAN_OUT_TASKS = 16
MIXED = 64
FEW = tuple(f"{texts} texts" for texts in (2, 4, 8))


@dataclass(frozen=True)
class Case:
    """One entry with one kind of work.

    Attributes:
        entry: name in `ENTRIES`.
        method: name in `METHODS`.
        tasks: number of different tasks in the batch, which its texts take in turn.
        resident: number of tasks in memory, if that is more than `tasks`.
        fan_out: whether one text goes to all tasks.
        shared: whether the common part of a fan-out may be computed once.
        rotate: whether each run uses one task for all texts, and the next run another one.
        checked: how many of the tasks have their answers compared with the reference's.
    """

    entry: str
    dtype: str
    method: str = "BitFit"
    tasks: int = 1
    resident: int = 0
    fan_out: bool = False
    shared: bool = False
    rotate: bool = False
    checked: int = MIXED

    @property
    def flags(self) -> list[str]:
        """How the case differs from a batch of texts with a task each."""
        flags = {
            "another task each time": self.rotate,
            "one text": self.shared,
            "a sequence each": self.fan_out and not self.shared,
        }
        return [flag for flag, is_set in flags.items() if is_set]

    @property
    def label(self) -> str:
        """The case's name in tables, unique in its scene."""
        parts = [ENTRIES[self.entry].title, self.dtype]
        if self.entry != "floor":
            parts += [self.method, f"{max(self.tasks, self.resident):,} tasks"]
        return ", ".join(parts + self.flags)


@dataclass(frozen=True)
class Scene:
    """Cases on the same texts of one base.

    Attributes:
        kind: title of the table; scenes of one kind differ in base and texts.
        texts: number of texts in a batch.
    """

    kind: str
    base: str
    mix: str
    texts: int
    cases: tuple[Case, ...] = field(repr=False)

    def tokens(self, case: Case, of_batch: int) -> int:
        """Tokens that a case really has, where the scene's whole batch has `of_batch`."""
        return of_batch * case.tasks // self.texts if case.fan_out else of_batch

    @property
    def name(self) -> str:
        """The scene's name on the command line."""
        return f"{self.kind}/{self.base}/{self.mix}"


# Entries that run a whole model in one call, which pays most where texts are few.
GRAPHS = ("transformers_compiled", "onnx_runtime", "open_vino")
# Bases of other families, and the entries beside which they are measured, in float32 alone.
OTHERS = (MPNET, MODERN_BERT)
BESIDE = ("floor", "ours", "transformers_padded", "transformers_sorted", "onnx_runtime", "open_vino")


def scenes(dtypes: Sequence[str] = DTYPES) -> list[Scene]:
    """All scenes of a run. Batches are smaller where texts are longer or the base is larger.

    Args:
        dtypes: those of `DTYPES` that the processor multiplies; int8 is measured wherever an entry computes in it.
    """
    one, mixed = tuple(_one_task(dtypes)), tuple(_mixed(dtypes))
    methods, fan_out = tuple(_methods(METHODS, dtypes)), tuple(_fan_out(dtypes))
    few = ("BitFit", "LoRA r=8 q, v", "SPAFIT, half")
    graphs = tuple(case for case in one if case.entry in ("ours", *GRAPHS))
    beside = tuple(case for case in one if case.entry in BESIDE and case.dtype == "float32")
    ours = tuple(Case("ours", "float32", tasks=tasks) for tasks in (1, MIXED))
    return [
        Scene("one text", MINILM, "short", 1, graphs),
        Scene("one text", MINILM, "sst2", 1, one),
        Scene("one text", BERT_BASE, "sst2", 1, one),
        *(Scene(kind, base, "sst2", int(kind.split()[0]), graphs) for kind in FEW for base in (MINILM, BERT_BASE)),
        Scene("one task", MINILM, "sst2", 64, one),
        Scene("one task", MINILM, "mrpc", 64, one),
        Scene("one task", MINILM, "imdb", 16, one),
        Scene("one task", BERT_BASE, "sst2", 16, one),
        Scene("many tasks", MINILM, "sst2", MIXED, mixed),
        Scene("many tasks", BERT_BASE, "sst2", MIXED, tuple(_mixed(dtypes[-1:]))),
        Scene("methods", MINILM, "sst2", MIXED, methods),
        Scene("methods", BERT_BASE, "sst2", MIXED, tuple(_methods(few, dtypes[-1:]))),
        Scene(FAN_OUT, MINILM, "sst2", FAN_OUT_TASKS, fan_out),
        Scene(FAN_OUT, BERT_BASE, "sst2", FAN_OUT_TASKS, fan_out),
        *(
            Scene(kind, base, "sst2", texts, cases)
            for kind, texts, cases in (("one text", 1, beside), ("one task", 16, beside), ("many tasks", MIXED, ours))
            for base in OTHERS
        ),
    ]


def _one_task(dtypes: Sequence[str]) -> Iterator[Case]:
    """All entries with one task, merged into the weights."""
    names = ("floor", "ours", "transformers_padded", "transformers_sorted", "transformers_compiled")
    for name in (*names, "onnx_runtime", "open_vino"):
        for dtype in ENTRIES[name].dtypes:
            if dtype in (*dtypes, "int8"):
                yield Case(name, dtype)


def _mixed(dtypes: Sequence[str]) -> Iterator[Case]:
    """OneBERT with more and more tasks in one batch, beside peers that serve several tasks from one process."""
    for dtype in dtypes:
        yield Case("floor", dtype)
        for tasks in (1, 8, MIXED):
            yield Case("ours", dtype, tasks=tasks)
        yield Case("ours", dtype, tasks=MIXED, rotate=True)
        for resident in (1_000, 10_000):
            yield Case("ours", dtype, tasks=MIXED, resident=resident)
        for tasks in (8, MIXED):
            yield Case("transformers_swapped", dtype, tasks=tasks, checked=8)
        for name in ("ours", "peft_mixed", "peft_swapped"):
            yield Case(name, dtype, "LoRA r=8 q, v", tasks=32)
        yield Case("ours", dtype, "frozen", tasks=MIXED)


def _methods(methods: Iterable[str], dtypes: Sequence[str]) -> Iterator[Case]:
    """Every method with one task and with a task for each text."""
    for dtype in dtypes:
        for method in methods:
            for tasks in (1, MIXED):
                yield Case("ours", dtype, method, tasks=tasks)


def _fan_out(dtypes: Sequence[str]) -> Iterator[Case]:
    """One text for sixteen tasks, computed once, as sixteen sequences, and for a single task."""
    for dtype in dtypes:
        yield Case("ours", dtype, "BitFit", tasks=1, fan_out=True, shared=True)
        for method in ("BitFit", "SPAFIT, half", "frozen"):
            for shared in (True, False):
                yield Case("ours", dtype, method, tasks=FAN_OUT_TASKS, fan_out=True, shared=shared)


def baseline(scene: Scene, case: Case) -> Case:
    """The case whose time a case's time is divided by: OneBERT with one task, or with as many of the same method."""
    # Of int8 the time is held against the fastest other dtype that was measured.
    others = [other.dtype for other in scene.cases if other.dtype != "int8"]
    dtype = max(others, key=DTYPES.index) if case.dtype == "int8" else case.dtype
    if scene.kind == FAN_OUT:
        return next(c for c in scene.cases if c.dtype == dtype and c.method == "BitFit" and c.fan_out and not c.shared)
    plain = (c for c in scene.cases if not c.resident and not c.rotate)
    ours = [c for c in plain if c.entry == "ours" and c.dtype == dtype]
    if scene.kind == "many tasks" and case.entry not in ("ours", "floor"):
        return min((c for c in ours if c.method == case.method), key=lambda c: abs(c.tasks - case.tasks))
    return next(c for c in ours if c.method == "BitFit" and c.tasks == 1)
