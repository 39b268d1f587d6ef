"""Comparisons: the baseline of every line of a table, and the goals of a run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onebert_bench.numbers import Spread, ratio
from onebert_bench.report import Goal
from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.scenes import DTYPES, FAN_OUT, FAN_OUT_TASKS, FEW, MIXED, OTHERS, Case, Scene
from onebert_bench.workload import BERT_BASE, MINILM

BASELINE = "BitFit"

Pick = Mapping[str, object]
"""Attributes that choose a case; without a dtype among them, it is the goal's."""
Bounds = Mapping[str, float]

LORA, SPAFIT, FROZEN = ({"method": name} for name in ("LoRA r=8 q, v", "SPAFIT, half", "frozen"))
OURS: Pick = {"entry": "ours", "method": BASELINE, "invariant": False}
ONE: Pick = {**OURS, "tasks": 1}
MANY: Pick = {**OURS, "tasks": MIXED, "resident": 0, "rotate": False}
SHARED: Pick = {**OURS, "tasks": FAN_OUT_TASKS, "fan_out": True, "shared": True}
EACH: Pick = {**SHARED, "shared": False}
INT8: Pick = {"entry": "onnx_runtime", "dtype": "int8"}
FLOOR, PADDED, SORTED, OPEN_VINO, COMPILED, ONNX, PEFT = (
    {"entry": name}
    for name in (
        "floor",
        "transformers_padded",
        "transformers_sorted",
        "open_vino",
        "transformers_compiled",
        "onnx_runtime",
        "peft_mixed",
    )
)


def baseline(scene: Scene, case: Case) -> Case:
    """The case whose time a case's time is divided by: OneBERT with one task, or with as many of the same method."""
    # Of int8 the time is held against the fastest other dtype that was measured.
    others = [other.dtype for other in scene.cases if other.dtype != "int8"]
    dtype = max(others, key=DTYPES.index) if case.dtype == "int8" else case.dtype
    if scene.kind == FAN_OUT:
        return next(c for c in scene.cases if c.dtype == dtype and c.method == BASELINE and c.fan_out and not c.shared)
    plain = (c for c in scene.cases if not c.resident and not c.rotate and not c.invariant)
    own = [c for c in plain if c.entry == "ours" and c.dtype == dtype]
    if scene.kind == "many tasks" and case.entry not in ("ours", "floor"):
        return min((c for c in own if c.method == case.method), key=lambda c: abs(c.tasks - case.tasks))
    return next(c for c in own if c.method == BASELINE and c.tasks == 1)


@dataclass(frozen=True)
class Wanted:
    """A ratio of two times, and what it should be.

    Attributes:
        kind: kind of the scenes that the goal is for.
        above, below: the two cases; the ratio is the time of `above` by the time of `below`.
        least, most: the bound for each dtype.
        bases: the bases that the goal is for.
    """

    text: str
    kind: str
    above: Pick
    below: Pick
    least: Bounds = field(default_factory=dict)
    most: Bounds = field(default_factory=dict)
    bases: tuple[str, ...] = (MINILM, BERT_BASE)


def _bounds(float32: float | None = None, bfloat16: float | None = None, int8: float | None = None) -> Bounds:
    given = {"float32": float32, "bfloat16": bfloat16, "int8": int8}
    return {dtype: bound for dtype, bound in given.items() if bound is not None}


def _few(kind: str) -> Iterator[Wanted]:
    """One text and some, beside what runs a whole model in one call."""
    yield Wanted(f"{kind}: time of OpenVINO", kind, ONE, OPEN_VINO, most=_bounds(1, 1))
    yield Wanted(f"{kind}: time of torch.compile", kind, ONE, COMPILED, most=_bounds(1, 1))
    yield Wanted(f"{kind}: time of ONNX Runtime", kind, ONE, ONNX, most=_bounds(1, int8=1))
    yield Wanted(f"{kind}: time of ONNX Runtime int8", kind, ONE, INT8, most=_bounds(bfloat16=1))


WANTED = (
    Wanted("rate of oneDNN's matrix products", "one task", FLOOR, ONE, _bounds(0.92, 0.85)),
    Wanted("one text: part of OpenVINO's time", "one text", ONE, OPEN_VINO, most=_bounds(0.7, 0.5), bases=(MINILM,)),
    *(wanted for kind in ("one text", *FEW) for wanted in _few(kind)),
    Wanted("times transformers, padded", "one task", PADDED, ONE, _bounds(4, 2.5)),
    Wanted("times ONNX Runtime int8", "one task", INT8, ONE, _bounds(bfloat16=1.6, int8=1.4)),
    Wanted("times bfloat16", "one task", {**ONE, "dtype": "bfloat16"}, ONE, _bounds(int8=1.6)),
    Wanted("64 BitFit tasks mixed, rate of one", "many tasks", ONE, MANY, _bounds(0.98, 0.98)),
    Wanted("64 LoRA tasks mixed, rate of one BitFit", "methods", ONE, {**MANY, **LORA}, _bounds(0.95, 0.95)),
    Wanted("64 SPAFIT tasks mixed, rate of one BitFit", "methods", ONE, {**MANY, **SPAFIT}, _bounds(0.9, 0.9)),
    Wanted(
        "another task for every batch, rate of one", "many tasks", ONE, {**MANY, "rotate": True}, _bounds(0.98, 0.98)
    ),
    Wanted("10,000 tasks held, rate of 64", "many tasks", MANY, {**MANY, "resident": 10_000}, _bounds(0.98, 0.98)),
    Wanted("times peft, adapter_names, 32 tasks", "many tasks", PEFT, {**OURS, **LORA, "tasks": 32}, _bounds(5, 5)),
    Wanted("one text, 16 BitFit tasks: time of 16 texts", FAN_OUT, SHARED, EACH, most=_bounds(1, 1)),
    Wanted("the same, SPAFIT", FAN_OUT, {**SHARED, **SPAFIT}, EACH, most=_bounds(0.6, 0.6)),
    Wanted(
        "the same, frozen: time of one text",
        FAN_OUT,
        {**SHARED, **FROZEN},
        {**ONE, "shared": True},
        most=_bounds(1.1, 1.1),
    ),
    *(
        Wanted(f"{kind}: time of {name}", kind, ONE, peer, most=_bounds(1), bases=OTHERS)
        for kind in ("one text", "one task")
        for name, peer in (
            ("transformers, padded", PADDED),
            ("transformers, sorted by length", SORTED),
            ("ONNX Runtime", ONNX),
            ("OpenVINO", OPEN_VINO),
        )
    ),
    Wanted("64 BitFit tasks mixed, rate of one", "many tasks", ONE, MANY, _bounds(0.97), bases=OTHERS),
)


def goals(scenes: Sequence[tuple[Scene, list[Outcome]]]) -> list[Goal]:
    """Each goal in each scene that has its cases."""
    return [
        Goal(wanted.text, dtype, f"{scene.base}, {scene.mix}", found, bound, at_least=bounds is wanted.least)
        for wanted in WANTED
        for bounds in (wanted.least, wanted.most)
        for dtype, bound in bounds.items()
        for scene, found in _found(wanted, dtype, scenes)
    ]


def _found(wanted: Wanted, dtype: str, scenes: Sequence[tuple[Scene, list[Outcome]]]) -> Iterator[tuple[Scene, Spread]]:
    for scene, outcomes in scenes:
        above, below = (_times(outcomes, {"dtype": dtype, **pick}) for pick in (wanted.above, wanted.below))
        if scene.kind == wanted.kind and scene.base in wanted.bases and above and below:
            yield scene, ratio(above, below)


def _times(outcomes: Sequence[Outcome], pick: Pick) -> list[float]:
    """The times of the first case that `pick` chooses; empty if there is none, or it does not count."""
    return next((outcome.ms for outcome in outcomes if outcome.counts and _is(outcome.case, pick)), [])


def _is(case: Case, pick: Pick) -> bool:
    return all(getattr(case, name) == value for name, value in pick.items())
