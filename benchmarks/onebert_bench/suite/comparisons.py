"""What is compared with what: the baseline of every line of a table, and the goals that a run is held against."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.scenes import FAN_OUT, FAN_OUT_TASKS, MIXED, Case, Scene
from onebert_bench.suite.spread import Spread, ratio

LORA, SPAFIT, BITFIT, FROZEN = "LoRA r=8 q, v", "SPAFIT, half", "BitFit", "frozen"


def baseline(scene: Scene, case: Case) -> Case:
    """What a case's time is divided by: one task of ours, or ours with as many tasks of the same method."""
    dtype = "bfloat16" if case.dtype == "int8" else case.dtype
    if scene.kind == FAN_OUT:
        return next(c for c in scene.cases if c.dtype == dtype and c.method == BITFIT and c.fan_out and not c.shared)
    plain = (c for c in scene.cases if not c.resident and not c.rotate and not c.invariant)
    own = [c for c in plain if c.entry == "ours" and c.dtype == dtype]
    if scene.kind == "many tasks" and case.entry not in ("ours", "floor"):
        return min((c for c in own if c.method == case.method), key=lambda c: abs(c.tasks - case.tasks))
    return next(c for c in own if c.method == BITFIT and c.tasks == 1)


@dataclass(frozen=True)
class Goal:
    """A ratio of two times of one scene, and what it should be.

    Attributes:
        above, below: which cases; the ratio is that of their times.
        wanted: the bound.
        at_least: whether the ratio should be above the bound, else below.
    """

    text: str
    kind: str
    dtype: str
    above: Callable[[Case], bool]
    below: Callable[[Case], bool]
    wanted: float
    at_least: bool = True


def is_case(entry: str, dtype: str, method: str = BITFIT, **more: object) -> Callable[[Case], bool]:
    """Picks one case."""
    wanted = {"entry": entry, "dtype": dtype, "method": method, **more}
    return lambda case: all(getattr(case, name) == value for name, value in wanted.items())


def _goals() -> list[Goal]:
    goals = []
    for dtype, of_floor, of_padded in (("float32", 0.80, 4.0), ("bfloat16", 0.65, 2.5)):
        one = is_case("ours", dtype, tasks=1, invariant=False)
        mixed = is_case("ours", dtype, tasks=MIXED, resident=0, rotate=False, invariant=False)
        held = is_case("ours", dtype, tasks=MIXED, resident=10_000)
        kept: dict[str, Any] = {"fan_out": True, "shared": True, "tasks": FAN_OUT_TASKS}
        each = is_case("ours", dtype, fan_out=True, shared=False)
        goals += [
            Goal("rate of the matrix products", "one task", dtype, is_case("floor", dtype), one, of_floor),
            Goal(
                "times transformers, padded", "one task", dtype, is_case("transformers_padded", dtype), one, of_padded
            ),
            Goal("64 BitFit tasks mixed, rate of one", "many tasks", dtype, one, mixed, 0.98),
            Goal("64 LoRA tasks mixed, rate of one BitFit", "methods", dtype, one, _mixed(dtype, LORA), 0.85),
            Goal("64 SPAFIT tasks mixed, rate of one BitFit", "methods", dtype, one, _mixed(dtype, SPAFIT), 0.9),
            Goal("10,000 tasks held, rate of 64", "many tasks", dtype, mixed, held, 0.98),
            Goal(
                "times peft, adapter_names, 32 tasks",
                "many tasks",
                dtype,
                is_case("peft_mixed", dtype, LORA),
                is_case("ours", dtype, LORA),
                5.0,
            ),
            Goal(
                "one text, 16 BitFit tasks: time of 16 texts",
                FAN_OUT,
                dtype,
                is_case("ours", dtype, **kept),
                each,
                1.0,
                False,
            ),
            Goal("the same, SPAFIT", FAN_OUT, dtype, is_case("ours", dtype, SPAFIT, **kept), each, 0.6, False),
            Goal(
                "the same, frozen: time of one text",
                FAN_OUT,
                dtype,
                is_case("ours", dtype, FROZEN, **kept),
                is_case("ours", dtype, tasks=1, shared=True),
                1.1,
                False,
            ),
        ]
    int8 = is_case("onnx_runtime", "int8")
    return [
        *goals,
        Goal("bfloat16: times ONNX Runtime int8", "one task", "int8", int8, is_case("ours", "bfloat16"), 1.6),
        Goal("int8: times bfloat16", "one task", "int8", is_case("ours", "bfloat16"), is_case("ours", "int8"), 1.3),
    ]


def _mixed(dtype: str, method: str) -> Callable[[Case], bool]:
    return is_case("ours", dtype, method, tasks=MIXED)


GOALS = _goals()


def goal_lines(scenes: Sequence[tuple[Scene, list[Outcome]]]) -> list[list[str]]:
    """A line for each goal in each scene that has its cases: what, where, found, wanted, reached."""
    lines = []
    for goal in GOALS:
        for scene, outcomes in scenes:
            if scene.kind != goal.kind:
                continue
            above = [outcome for outcome in outcomes if goal.above(outcome.case) and outcome.ms]
            below = [outcome for outcome in outcomes if goal.below(outcome.case) and outcome.ms]
            if above and below:
                found = ratio(above[0].ms, below[0].ms)
                lines.append([goal.text, goal.dtype, f"{scene.base}, {scene.mix}", str(found), *_verdict(goal, found)])
    return lines


def _verdict(goal: Goal, found: Spread) -> tuple[str, str]:
    reached = found.middle >= goal.wanted if goal.at_least else found.middle <= goal.wanted
    return f"{'≥' if goal.at_least else '≤'} {goal.wanted:g}", "yes" if reached else "no"
