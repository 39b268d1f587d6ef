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
from onebert_store.file.strict_json import shown

# At most this share of the tasks called worse or better is neither, on average.
FALSE_DISCOVERY_RATE = 0.05
# The worst first.
_VERDICTS = ("worse", "changed", "level", "better")


def compare_all(url: str, api_key: str | None, folder: Path, how: HowToRead) -> dict[str, Any]:
    """Compares the live and the newest version of each task that has rows, the worst first, as a JSON value."""
    with Client(url, api_key) as client:
        read, left_out = read_tasks(client, folder, how)
    results = iter(ask(url, api_key, [item for one in read for item in one.items]))
    found = list[dict[str, Any]]()
    for one in read:
        own = [next(results) for _ in one.items]
        try:
            both = answered(one.rows, own, one.task_types)
        except OneBertError as error:
            left_out[one.task] = error.detail
        else:
            live, newest = (facts.version for facts in one.versions)
            found.append({"task": one.task, "live": live, "newest": newest, **compared(both)})
    tested = [each for each in found if "p" in each]
    for each, p in zip(tested, corrected([each["p"] for each in tested]), strict=True):
        each["corrected_p"] = p
    found = [each | {"verdict": verdict(each)} for each in found]
    found.sort(key=lambda each: (_VERDICTS.index(each["verdict"]), _gain(each), each["task"]))
    return {"tasks": found, "false_discovery_rate": FALSE_DISCOVERY_RATE, "left_out": left_out}


def verdict(found: Mapping[str, Any]) -> str:
    """One of `_VERDICTS`, from what `compared` returns and the `corrected_p`."""
    if not found["flips"]:
        return "level"
    if found.get("corrected_p", 1.0) > FALSE_DISCOVERY_RATE:
        return "changed"
    return "worse" if _gain(found) < 0 else "better"


def _gain(found: Mapping[str, Any]) -> float:
    """How much larger the newest version's share of right answers is than the live one's."""
    return (found["only_b"] - found["only_a"]) / found["rows"] if "p" in found else 0.0


def print_all(record: Mapping[str, Any]) -> None:
    """Prints what `compare_all` returns: a line for each task, and the tasks that are left out by name."""
    numbers = ("live", "newest", "rows", "flips", "p")
    columns = ("task", *numbers[:4], "right", "p", "newest is", "loses most at")
    console.show(columns, map(_row, record["tasks"]), numbers)
    counts = Counter(one["verdict"] for one in record["tasks"])
    said = ", ".join(f"{counts[one]} {one}" for one in _VERDICTS if counts[one]) or "no task"
    console.say(f"{said}; p by McNemar's exact test, with a false discovery rate of {FALSE_DISCOVERY_RATE:.0%}")
    print_left_out(record["left_out"])


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(one[name]) for name in ("live", "newest", "rows", "flips"))
    right = f"{one['right']['a']} → {one['right']['b']}" if "p" in one else "–"
    p = f"{one['corrected_p']:.3g}" if "p" in one else "–"
    return one["task"], *counts, right, p, one["verdict"], _greatest_loss(one)


def _greatest_loss(one: Mapping[str, Any]) -> str:
    """The label or the value of a slice that loses the most right answers; empty if none does."""
    if "p" not in one:
        return ""
    parts = {("label", name): part for name, part in one["labels"].items()}
    parts |= {(column, value): part for column, values in one["slices"].items() for value, part in values.items()}
    (column, value), part = min(parts.items(), key=lambda found: found[1]["right_b"] - found[1]["right_a"])
    if part["right_b"] >= part["right_a"]:
        return ""
    return f"{shown(column)}={shown(value)}: {part['right_a']} → {part['right_b']} of {part['rows']}"
