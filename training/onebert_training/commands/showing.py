"""Shows the progress and the result of `onebert train`, and the result of `onebert evaluate`."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from onebert_store.command import console
from onebert_store.file.strict_json import printable
from onebert_training.fit.loop import Progress
from onebert_training.fit.run import Run
from onebert_training.insight.decision_rules import REFUSED
from onebert_training.selection.few import fold_steps, needs_folds
from onebert_training.selection.selection import Selection, short_steps, train_and_select

_THRESHOLDS = 8  # thresholds in a line
_BY = "by more than the lead's standard error"


def summary(run: Run) -> str:
    """The numbers of trained and of stored parameters, with the share of the base; the classifier separately."""
    description = run.data.task_type + (f" of {len(run.data.labels)} labels" if len(run.data.labels) > 1 else "")
    trained = f"{run.plan.num_trained:,} parameters"
    if run.plan.num_trained != run.delta_parameters:
        trained += f" for a delta of {run.delta_parameters:,}"
    trained += f", {run.percent:.2f} % of the {run.base.spec.num_parameters:,}"
    return (
        f"{run.task}, {description}: {run.method.text} trains {trained} of {run.base.spec.name}, "
        f"and {run.head_parameters:,} of the classifier"
    )


def train_with_progress(run: Run, checkpoint: Path, listen: Callable[[Progress], None] | None = None) -> Selection:
    """Trains and shows progress: a bar with the last evaluation on a terminal, else a line per evaluation or 30 s."""
    at, planned = Progress(0, run.steps), run.steps
    best: float | None = None
    short, folds = short_steps(run), fold_steps(run) if needs_folds(run) else []
    clock = Clock(run.steps + short + sum(folds))
    if run.steps:
        extra_steps = f"{len(folds)} folds" if folds else "a short run from the exact head" if short else ""
        console.tell(f"{clock.steps:,} steps" + (f", those of {extra_steps} included" if extra_steps else ""))
    with console.progress(describe=lambda: _line(run, at) + clock.remaining) as bar:
        drawn = bar.add_task("", total=run.steps)

        def report(run: Run, progress: Progress) -> None:
            nonlocal at, best
            at = progress
            # The short run steps along with the run's first steps; the folds come after its last.
            after_run, with_short_run = (
                planned + progress.step * progress.folds,
                progress.step + min(progress.step, short),
            )
            if not progress.testing and (total := clock.show(after_run if progress.folds else with_short_run)):
                console.tell(f"about {total} in all")
            if progress.note:
                console.tell(f"note: {progress.note}")
            if progress.validation:
                best = progress.best
                if not console.err.is_terminal:
                    console.tell(_line(run, progress) + clock.remaining)
            best_score = "" if best is None or progress.testing else f", best {best:.4f}"
            doing = _where(run, progress) + best_score + _rate(progress)
            looks = progress.validation is not None
            bar.update(drawn, completed=progress.step, total=progress.steps, description=doing, refresh=looks)
            if listen is not None:
                listen(progress)

        return train_and_select(run, report, checkpoint)


class Clock:
    """Estimates total and remaining time from the steps so far."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._began: tuple[float, int] | None = None
        self._done, self._each, self._said = 0, 0.0, False

    def show(self, done: int) -> str:
        """Counts steps from the first call on; returns the estimated total once, when two steps have been timed."""
        now = time.monotonic()
        since, first = self._began = self._began or (now, done)
        self._done, self._each = done, (now - since) / max(1, done - first)
        if self._said or not first + 2 <= done < self.steps:
            return ""
        self._said = True
        return format_duration(self._each * self.steps)

    @property
    def remaining(self) -> str:
        """Such as `, about 1 min 40 s left`; empty before the first timed step and after the last one."""
        if not self._each or self._done >= self.steps:
            return ""
        return f", about {format_duration(self._each * (self.steps - self._done))} left"


def format_duration(seconds: float) -> str:
    """A duration such as `2 min 10 s`; without seconds from an hour on."""
    total_seconds = max(1, round(seconds))
    hours, minutes = divmod(total_seconds // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {total_seconds % 60} s" if minutes else f"{total_seconds} s"


def _where(run: Run, progress: Progress) -> str:
    if progress.testing:
        return "measuring the test split"
    at = f"epoch {progress.step / run.schedule.steps_per_epoch:.1f}"
    if progress.folds:
        at = f"in {progress.folds} folds"
    return at if progress.loss is None else f"{at}, loss {progress.loss:.4f}"


def _line(run: Run, progress: Progress) -> str:
    score = f", validation {run.metric} {progress.validation[run.metric]:.4f}" if progress.validation else ""
    return f"step {progress.step}/{progress.steps}, {_where(run, progress)}{score}{_rate(progress)}"


def _rate(progress: Progress) -> str:
    return f", {progress.tokens_per_second:,.0f} tokens/s" if progress.tokens_per_second else ""


def next_step(run: Run, record: Mapping[str, Any]) -> str:
    """The next step: publish, a remedy if a baseline is as good, or import; no test row decides it.

    A command stands on a line of its own, after `next: `.
    """
    out = quote(record["out"])
    if record["digest"] is None:
        why = "an import makes a delta of the checkpoint, at the rank that keeps the checkpoint's answers"
        return f"{why}\nnext: onebert import {out} --data DATA --out {record['task']}.safetensors"
    metric, baselines = record["metric"], record["yardsticks"]
    if baselines["constant"] is None and baselines["head"] is None:
        why = f"a {record['task_type']} task has no baseline: look at its answers, and push it where these are good"
        return f"{why}\nnext: onebert evaluate {out} --data DATA --report report.html"
    where = f"in {record['folds']} folds" if record["folds"] else "on validation"
    score = f"{metric} {record['validation'][metric]:.4f} {where}"
    if record["unbeaten"] == "head":
        head_score = baselines["head"]["validation"][metric]
        return f"try --method head: the exact head alone is ahead {_BY} ({head_score:.4f} against {score})"
    if not record["useful"]:
        wrong = "; onebert check --labels looks for wrong labels" if run.data.task_type == "single_label" else ""
        constant = baselines["constant"]["answer"] if baselines["constant"] else "a constant answer"
        return f"try {_remedies(run)}: {constant} is not behind {_BY} ({score}){wrong}"
    alone = "it is the head alone, on the frozen base\n" if run.plan.exact else ""
    return f"{alone}next: onebert push {out} --task {record['task']}"


def _remedies(run: Run) -> str:
    counts = run.objective.label_counts(run.data.splits["train"])
    unweighted = counts is not None and run.settings.class_weight is None
    return ("--class-weight balanced where labels are uneven, " if unweighted else "") + "more rows or another --method"


def show_trained(record: Mapping[str, Any], patience: int) -> None:
    """Prints the result of a run as a table, with warnings."""
    table = console.facts()
    table.add_row("task type", record["task_type"])
    for split in ("validation", "test"):
        if record[split] is not None:
            measured = f"{record['folds']} folds" if split == "validation" and record["folds"] else split
            table.add_row(measured, _scores(record["metric"], record[split]))
    table.add_row("delta", f"{record['delta_parameters']:,} parameters ({record['percent']:.2f} % of the base)")
    table.add_row("classifier", f"{record['head_parameters']:,} parameters")
    steps = f"{record['steps']:,} of {record['planned_steps']:,}, step {record['best_step']:,} kept"
    if not record["planned_steps"]:
        steps = "none: the head is exact"
    elif record["steps"] < record["planned_steps"]:
        steps += f"; stopped early: {patience} evaluations without a better metric or loss"
    table.add_row("steps", steps)
    table.add_row("file", f"{record['out']}, {record['file_bytes']:,} bytes")
    speed = f", {record['tokens_per_second']:,} tokens/s in training" if record["planned_steps"] else ""
    table.add_row("time", f"{record['seconds']:.1f} s{speed}")
    if "folds" in (calibration := record["calibration"] or {}):
        fitted = calibration["temperature"]
        gain = f"log loss {fitted['before']:.3f} → {fitted['after']:.3f}"
        table.add_row("temperature", f"{fitted['temperature']:.3g}, by the folds: {gain}")
    if record["watching"] is not None:
        table.add_row("watching", record["watching"])
    if record["digest"] is not None:
        table.add_row("digest", record["digest"])
    _show(f"{record['task']}: {record['method']} on {record['base']}", table, record["warnings"])


def show_evaluation(record: Mapping[str, Any]) -> None:
    """Prints an evaluation as tables, with warnings."""
    table, metric = console.facts(), record["metric"]
    table.add_row("metrics", _scores(metric, record["metrics"]))
    if record["interval"] is not None:
        table.add_row("", f"{metric} within {_between(record['interval'])}, 95 %")
    for baseline in record["yardsticks"]:
        table.add_row(printable(baseline["name"]), _scores(metric, baseline["metrics"]))
    if (facts := record["calibration"]) is not None:
        calibration = f"confidence {facts['confidence']:.4f}, right {facts['right']:.4f}, ECE {facts['ece']:.4f}"
        table.add_row("calibration", calibration)
    for row in [*_decided_rows(record), *unknown_rows(record["unknown"] or {})]:
        table.add_row(*row)
    table.add_row("time", f"{record['seconds']:.1f} s, {record['tokens_per_second']:,} tokens/s")
    table.add_row("digest", record["digest"])
    _show(f"{record['split']}: {record['rows']:,} rows", table, record["warnings"])
    for sliced in record["slices"]:
        _show_slice(sliced)


def _decided_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    decision, lines = record["decision"] or {}, []
    if "temperature" in decision:
        lines.append(("temperature", f"{decision['temperature']:.6g}"))
    if thresholds := decision.get("thresholds"):
        lines.append(("thresholds", thresholds_line(thresholds)))
    if (abstained := record["abstained"]) is not None:
        score, answered = abstained["score_of_the_rest"], record["rows"] - abstained["rows"]
        right = "" if score is None else f", of these {abstained['metric']} {score:.4f}"
        rules = [abstaining_rule(decision["abstain"])] if "abstain" in decision else []
        rules += ["texts that are cut"] if decision.get("cut") == "abstain" else []
        lines.append(("abstains", ", ".join(rules)))
        lines.append(("answered", f"{percent(answered / record['rows'])} of the rows{right}"))
    return lines


def thresholds_line(thresholds: Mapping[str, float]) -> str:
    """The thresholds of labels, as text; of many labels the first."""
    named = [f"{printable(label, 40)} {over:.6g}" for label, over in list(thresholds.items())[:_THRESHOLDS]]
    rest = f" and {len(thresholds) - _THRESHOLDS:,} more" if len(thresholds) > _THRESHOLDS else ""
    return ", ".join(named) + rest


def abstaining_rule(abstain: Mapping[str, Any]) -> str:
    """The condition for abstaining, as text."""
    return f"energy over {abstain['energy']:.6g}" if "energy" in abstain else f"below {abstain['below']:.6g}"


def unknown_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A line per sureness on how well it separates unknown texts; none if nothing was measured."""
    lines = []
    for name in [name for name in ("probability", "energy") if name in facts]:
        through = facts[name]["let_through"]
        refused = f", {percent(through or 0)} of {facts['texts']:,} let through at {percent(REFUSED)} refused"
        lines.append((f"unknown by {name}", f"AUROC {facts[name]['auroc']:.3f}{'' if through is None else refused}"))
    return lines


def percent(share: float) -> str:
    """A share in per cent, with one decimal."""
    return f"{100 * share:.1f} %"


def _show_slice(facts: Mapping[str, Any]) -> None:
    metric = facts["metric"]
    table = console.table(printable(facts["column"]), "rows", metric, "95 %", numbers=("rows", metric, "95 %"))
    for value in facts["values"]:
        score = "" if value["score"] is None else f"{value['score']:.4f}"
        between = "" if value["low"] is None else _between((value["low"], value["high"]))
        table.add_row(value["value"], f"{value['rows']:,}", score, between)
    console.out.print(table)


def _between(ends: Sequence[float]) -> str:
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def _show(title: str, table: Any, warnings: list[str]) -> None:
    console.say(title)
    console.out.print(table)
    for warning in warnings:
        console.say(f"warning: {warning}")


def _scores(metric: str, scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {scores[name]:.4f}" for name in sorted(scores, key=lambda name: name != metric))
