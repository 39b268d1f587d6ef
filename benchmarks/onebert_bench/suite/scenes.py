"""What is measured: scenes of cases that stand in one table, measured in turns on the same texts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from onebert_bench.suite.entries import ENTRIES
from onebert_bench.suite.workload import BERT_BASE, METHODS, MINILM

DTYPES = ("float32", "bfloat16")
FAN_OUT = "fan-out"
FAN_OUT_TASKS = 16
MIXED = 64


@dataclass(frozen=True)
class Case:
    """One entry with one kind of work.

    Attributes:
        entry: of `ENTRIES`.
        method: of `METHODS`.
        tasks: different tasks in the batch; its texts take them in turn.
        resident: tasks that are held, where it is more.
        fan_out: whether one text goes to all tasks; `shared` says whether its common part may be computed once.
        rotate: whether every run is for another one of the tasks.
        invariant: whether a text shall have the same bits in every batch.
        checked: answers are compared with the reference's for tasks below this one.
    """

    entry: str
    dtype: str
    method: str = "BitFit"
    tasks: int = 1
    resident: int = 0
    fan_out: bool = False
    shared: bool = False
    rotate: bool = False
    invariant: bool = False
    checked: int = MIXED

    @property
    def label(self) -> str:
        """As in tables: unique in its scene."""
        parts = [ENTRIES[self.entry].title, self.dtype]
        if self.entry != "floor":
            parts += [self.method, f"{max(self.tasks, self.resident):,} tasks"]
        flags = {"in turn": self.rotate, "one text": self.shared, "a sequence each": self.fan_out and not self.shared}
        flags["batch-invariant"] = self.invariant
        return ", ".join(parts + [flag for flag, is_set in flags.items() if is_set])


@dataclass(frozen=True)
class Scene:
    """Cases on the same texts of one base.

    Attributes:
        kind: the table's; scenes of one kind differ in base and texts.
        texts: sequences in a batch.
    """

    kind: str
    base: str
    mix: str
    texts: int
    cases: tuple[Case, ...] = field(repr=False)

    def tokens(self, case: Case, of_batch: int) -> int:
        """Tokens that a case answers for, where the whole batch has so many."""
        return of_batch * case.tasks // self.texts if case.fan_out else of_batch

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.kind}/{self.base}/{self.mix}"


def scenes(device: str) -> list[Scene]:
    """All of a run. Batches are smaller where texts are longer or the base is larger."""
    one, mixed, methods = tuple(_one_task(device)), tuple(_mixed(device, DTYPES)), tuple(_methods(METHODS, DTYPES))
    few = ("BitFit", "LoRA r=8 q, v", "SPAFIT, half")
    return [
        Scene("one text", MINILM, "sst2", 1, one),
        Scene("one text", BERT_BASE, "sst2", 1, one),
        Scene("one task", MINILM, "sst2", 64, one),
        Scene("one task", MINILM, "mrpc", 64, one),
        Scene("one task", MINILM, "imdb", 16, one),
        Scene("one task", BERT_BASE, "sst2", 16, one),
        Scene("many tasks", MINILM, "sst2", MIXED, mixed),
        Scene("many tasks", BERT_BASE, "sst2", MIXED, tuple(_mixed(device, DTYPES[1:]))),
        Scene("methods", MINILM, "sst2", MIXED, methods),
        Scene("methods", BERT_BASE, "sst2", MIXED, tuple(_methods(few, DTYPES[1:]))),
        Scene(FAN_OUT, MINILM, "sst2", FAN_OUT_TASKS, tuple(_fan_out())),
        Scene(FAN_OUT, BERT_BASE, "sst2", FAN_OUT_TASKS, tuple(_fan_out())),
    ]


def _one_task(device: str) -> Iterator[Case]:
    """Everybody with one task merged, or on the frozen encoder."""
    names = ("floor", "ours", "transformers_padded", "transformers_sorted", "transformers_compiled")
    for name in (*names, "onnx_runtime", "open_vino", "sentence_head"):
        if device == "cpu" or ENTRIES[name].cuda:
            for dtype in ENTRIES[name].dtypes:
                yield Case(name, dtype, "frozen" if name == "sentence_head" else "BitFit")
    for dtype in DTYPES:
        yield Case("ours", dtype, invariant=True)


def _mixed(device: str, dtypes: tuple[str, ...]) -> Iterator[Case]:
    """More and more tasks in one batch, beside those who serve several from one process."""
    for dtype in dtypes:
        yield Case("floor", dtype)
        for tasks in (1, 8, MIXED):
            yield Case("ours", dtype, tasks=tasks)
        yield Case("ours", dtype, tasks=MIXED, rotate=True)
        for resident in (1_000, 10_000):
            yield Case("ours", dtype, tasks=MIXED, resident=resident)
        for tasks in (8, MIXED):
            yield Case("transformers_swapped", dtype, tasks=tasks, checked=8)
        for name in ("ours", "peft_mixed", "peft_swapped", "adapters_split"):
            if device == "cpu" or ENTRIES[name].cuda:
                yield Case(name, dtype, "LoRA r=8 q, v", tasks=32)
        for method in ("BitFit", "LoRA r=8 q, v"):
            yield Case("ours", dtype, method, tasks=MIXED, invariant=True)
        for name in ("ours", "sentence_head"):
            yield Case(name, dtype, "frozen", tasks=MIXED)


def _methods(methods: Iterable[str], dtypes: tuple[str, ...]) -> Iterator[Case]:
    """Every method with one task and with a task for each text."""
    for dtype in dtypes:
        for method in methods:
            for tasks in (1, MIXED):
                yield Case("ours", dtype, method, tasks=tasks)


def _fan_out() -> Iterator[Case]:
    """One text for sixteen tasks, beside sixteen sequences and beside one."""
    for dtype in DTYPES:
        yield Case("ours", dtype, "BitFit", tasks=1, fan_out=True, shared=True)
        for method in ("BitFit", "SPAFIT, half", "frozen"):
            for shared in (True, False):
                yield Case("ours", dtype, method, tasks=FAN_OUT_TASKS, fan_out=True, shared=shared)
