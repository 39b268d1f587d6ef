"""Comparisons: the baseline of every line of a table, and the goals of a run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.scenes import DTYPES, FAN_OUT, FAN_OUT_TASKS, FEW, MIXED, Case, Scene
from onebert_bench.suite.spread import Spread, ratio
from onebert_bench.suite.workload import MINILM

BASELINE = "BitFit"
HEADER = ("goal", "dtype", "on", "found", "wanted", "reached")

Pick = Mapping[str, object]
"""Attributes that choose a case; without a dtype among them, it is the goal's."""

LORA, SPAFIT, FROZEN = ({"method": name} for name in ("LoRA r=8 q, v", "SPAFIT, half", "frozen"))
OURS: Pick = {"entry": "ours", "method": BASELINE, "invariant": False}
ONE: Pick = {**OURS, "tasks": 1}
MANY: Pick = {**OURS, "tasks": MIXED, "resident": 0, "rotate": False}
SHARED: Pick = {**OURS, "tasks": FAN_OUT_TASKS, "fan_out": True, "shared": True}
EACH: Pick = {**SHARED, "shared": False}
INT8: Pick = {"entry": "onnx_runtime", "dtype": "int8"}


def baseline(scene: Scene, case: Case) -> Case:
    """The case whose time a case's time is divided by: OneBERT with one task, or with as many of the same method."""
    # Of int8 the time is held against the fastest other dtype that was measured.
    dtype = (
        max((c.dtype for c in scene.cases if c.dtype != "int8"), key=DTYPES.index)
        if case.dtype == "int8"
        else case.dtype
    )
    if scene.kind == FAN_OUT:
        return next(c for c in scene.cases if c.dtype == dtype and c.method == BASELINE and c.fan_out and not c.shared)
    plain = (c for c in scene.cases if not c.resident and not c.rotate and not c.invariant)
    own = [c for c in plain if c.entry == "ours" and c.dtype == dtype]
    if scene.kind == "many tasks" and case.entry not in ("ours", "floor"):
        return min((c for c in own if c.method == case.method), key=lambda c: abs(c.tasks - case.tasks))
    return next(c for c in own if c.method == BASELINE and c.tasks == 1)


@dataclass(frozen=True)
class Goal:
    """A ratio of two times, and what it should be.

    Attributes:
        kind: kind of the scenes that the goal is for.
        above, below: the two cases; the ratio is the time of `above` by the time of `below`.
        wanted: the bound for each dtype.
        at_least: whether the ratio should be at least the bound; otherwise at most.
        base: the base that the goal is for; None for all.
    """

    text: str
    kind: str
    above: Pick
    below: Pick
    wanted: Mapping[str, float]
    at_least: bool = True
    base: str | None = None


def _both(bound: float) -> Mapping[str, float]:
    return {"float32": bound, "bfloat16": bound}


def _few() -> Iterator[Goal]:
    """One text and some, beside what runs a whole model in one call."""
    for kind in ("one text", *FEW):
        for title, entry, dtypes in (
            ("OpenVINO", "open_vino", ("float32", "bfloat16")),
            ("torch.compile", "transformers_compiled", ("float32", "bfloat16")),
            ("ONNX Runtime", "onnx_runtime", ("float32", "int8")),
        ):
            yield Goal(
                f"{kind}: time of {title}", kind, ONE, {"entry": entry}, dict.fromkeys(dtypes, 1), at_least=False
            )
        yield Goal(f"{kind}: time of ONNX Runtime int8", kind, ONE, INT8, {"bfloat16": 1.0}, at_least=False)


GOALS = (
    Goal("rate of oneDNN's matrix products", "one task", {"entry": "floor"}, ONE, {"float32": 0.92, "bfloat16": 0.85}),
    Goal(
        "one text: part of OpenVINO's time",
        "one text",
        ONE,
        {"entry": "open_vino"},
        {"float32": 0.7, "bfloat16": 0.5},
        at_least=False,
        base=MINILM,
    ),
    *_few(),
    Goal(
        "times transformers, padded",
        "one task",
        {"entry": "transformers_padded"},
        ONE,
        {"float32": 4.0, "bfloat16": 2.5},
    ),
    Goal("times ONNX Runtime int8", "one task", INT8, ONE, {"bfloat16": 1.6, "int8": 1.4}),
    Goal("times bfloat16", "one task", {**ONE, "dtype": "bfloat16"}, ONE, {"int8": 1.6}),
    Goal("64 BitFit tasks mixed, rate of one", "many tasks", ONE, MANY, _both(0.98)),
    Goal("64 LoRA tasks mixed, rate of one BitFit", "methods", ONE, {**MANY, **LORA}, _both(0.95)),
    Goal("64 SPAFIT tasks mixed, rate of one BitFit", "methods", ONE, {**MANY, **SPAFIT}, _both(0.9)),
    Goal("another task for every batch, rate of one", "many tasks", ONE, {**MANY, "rotate": True}, _both(0.98)),
    Goal("10,000 tasks held, rate of 64", "many tasks", MANY, {**MANY, "resident": 10_000}, _both(0.98)),
    Goal(
        "times peft, adapter_names, 32 tasks",
        "many tasks",
        {"entry": "peft_mixed"},
        {**OURS, **LORA, "tasks": 32},
        _both(5.0),
    ),
    Goal("one text, 16 BitFit tasks: time of 16 texts", FAN_OUT, SHARED, EACH, _both(1.0), at_least=False),
    Goal("the same, SPAFIT", FAN_OUT, {**SHARED, **SPAFIT}, EACH, _both(0.6), at_least=False),
    Goal(
        "the same, frozen: time of one text",
        FAN_OUT,
        {**SHARED, **FROZEN},
        {**ONE, "shared": True},
        _both(1.1),
        at_least=False,
    ),
)


def goal_lines(scenes: Sequence[tuple[Scene, list[Outcome]]]) -> list[list[str]]:
    """A line, with the columns of `HEADER`, for each goal in each scene that has its cases."""
    return [
        goal_line(goal.text, dtype, f"{scene.base}, {scene.mix}", found, bound, at_least=goal.at_least)
        for goal in GOALS
        for dtype, bound in goal.wanted.items()
        for scene, found in _found(goal, dtype, scenes)
    ]


def goal_line(text: str, dtype: str, on: str, found: Spread, wanted: float, *, at_least: bool) -> list[str]:
    """A line of the table of goals."""
    reached = found.middle >= wanted if at_least else found.middle <= wanted
    return [text, dtype, on, str(found), f"{'≥' if at_least else '≤'} {wanted:g}", "yes" if reached else "no"]


def _found(goal: Goal, dtype: str, scenes: Sequence[tuple[Scene, list[Outcome]]]) -> Iterator[tuple[Scene, Spread]]:
    for scene, outcomes in scenes:
        above, below = (_times(outcomes, {"dtype": dtype, **pick}) for pick in (goal.above, goal.below))
        if scene.kind == goal.kind and goal.base in (None, scene.base) and above and below:
            yield scene, ratio(above, below)


def _times(outcomes: Sequence[Outcome], pick: Pick) -> list[float]:
    """The times of the first case that `pick` chooses; empty if there is none, or it does not count."""
    return next((outcome.ms for outcome in outcomes if outcome.counts and _is(outcome.case, pick)), [])


def _is(case: Case, pick: Pick) -> bool:
    return all(getattr(case, name) == value for name, value in pick.items())
