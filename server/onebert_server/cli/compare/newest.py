"""`onebert diff --all`: the live version of each task beside its newest one, over the task's own rows."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onebert_server.cli.compare.asking import ask
from onebert_server.cli.compare.differences import answered, compared, corrected
from onebert_server.cli.compare.reading import HowToRead, print_left_out, read_tasks
from onebert_server.client import Client
from onebert_store.command import console
from onebert_store.errors import OneBertError
from onebert_store.file.strict_json import printable

# At most this share of the tasks called worse or better is neither, on average.
FALSE_DISCOVERY_RATE = 0.05
# The worst first.
_VERDICTS = ("worse", "changed", "level", "better")


def compare_all(url: str, api_key: str | None, folder: Path, how: HowToRead) -> dict[str, Any]:
    """Compares the live and the newest version of each task that has rows, the worst first, as a JSON value."""
    with Client(url, api_key) as client:
        read, left_out = read_tasks(client, folder, how)
    results = iter(ask(url, api_key, [item for task in read for item in task.items]))
    tasks = list[dict[str, Any]]()
    for task in read:
        task_results = [next(results) for _ in task.items]
        try:
            both = answered(task.rows, task_results, task.task_types)
        except OneBertError as error:
            left_out[task.task] = error.detail
        else:
            live, newest = (facts.version for facts in task.versions)
            tasks.append({"task": task.task, "live": live, "newest": newest, **compared(both)})
    tested = [each for each in tasks if "p" in each]
    for each, p in zip(tested, corrected([each["p"] for each in tested]), strict=True):
        each["corrected_p"] = p
    tasks = [each | {"verdict": verdict(each)} for each in tasks]
    tasks.sort(key=lambda each: (_VERDICTS.index(each["verdict"]), _gain(each), each["task"]))
    return {"tasks": tasks, "false_discovery_rate": FALSE_DISCOVERY_RATE, "left_out": left_out}


def verdict(task: Mapping[str, Any]) -> str:
    """One of `_VERDICTS`, from what `compared` returns and the `corrected_p`."""
    if not task["flips"]:
        return "level"
    if task.get("corrected_p", 1.0) > FALSE_DISCOVERY_RATE:
        return "changed"
    return "worse" if _gain(task) < 0 else "better"


def _gain(task: Mapping[str, Any]) -> float:
    """How much larger the newest version's share of right answers is than the live one's."""
    return (task["only_b"] - task["only_a"]) / task["rows"] if "p" in task else 0.0


def print_all(record: Mapping[str, Any]) -> None:
    """Prints what `compare_all` returns: a line for each task, and the tasks that are left out by name."""
    numbers = ("live", "newest", "rows", "flips", "p")
    columns = ("task", *numbers[:4], "right", "p", "newest is", "loses most at")
    console.show(columns, map(_row, record["tasks"]), numbers)
    counts = Counter(task["verdict"] for task in record["tasks"])
    counted = ", ".join(f"{counts[name]} {name}" for name in _VERDICTS if counts[name]) or "no task"
    console.say(f"{counted}; p by McNemar's exact test, with a false discovery rate of {FALSE_DISCOVERY_RATE:.0%}")
    print_left_out(record["left_out"])


def _row(task: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(task[name]) for name in ("live", "newest", "rows", "flips"))
    right = f"{task['right']['a']} → {task['right']['b']}" if "p" in task else "–"
    p = f"{task['corrected_p']:.3g}" if "p" in task else "–"
    return task["task"], *counts, right, p, task["verdict"], _greatest_loss(task)


def _greatest_loss(task: Mapping[str, Any]) -> str:
    """The label or the value of a slice that loses the most right answers; empty if none does."""
    if "p" not in task:
        return ""
    parts = {("label", name): part for name, part in task["labels"].items()}
    parts |= {(column, value): part for column, values in task["slices"].items() for value, part in values.items()}
    (column, value), part = min(parts.items(), key=lambda item: item[1]["right_b"] - item[1]["right_a"])
    if part["right_b"] >= part["right_a"]:
        return ""
    return f"{printable(column)}={printable(value)}: {part['right_a']} → {part['right_b']} of {part['rows']}"
