"""Reads from the files of versions the scores, the data and the labels of their training, for commands."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.client import Client
from onebert_store.errors import NotFound, StoreCorrupt, VersionUnavailable
from onebert_store.file.card import card_in
from onebert_store.file.measured import score_of
from onebert_store.file.strict_json import printable

# The most labels named in a line.
LABELS_SHOWN = 8


def training_of(client: Client, task: str, version: int) -> dict[str, Any]:
    """The training data and score recorded in a version's file; empty if unknown."""
    return training_in(manifest_of(client, task, version))


def manifest_of(client: Client, task: str, version: int) -> dict[str, Any]:
    """The manifest of a version; empty if it cannot be read."""
    try:
        return client.version(task, version).manifest
    except (NotFound, StoreCorrupt, VersionUnavailable):
        return {}


def training_in(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The data, the score and the lacking targets of the training that a manifest records, as far as it does."""
    training = manifest.get("training")
    data = training.get("data") if isinstance(training, Mapping) else None
    known: dict[str, Any] = {}
    if isinstance(data, Mapping):
        known |= {name: data[key] for name, key in (("data", "name"), ("data_digest", "digest")) if key in data}
        more = data.get("more")
        if isinstance(more, Mapping) and more.get("relabeled"):
            known["relabeled"] = more["relabeled"]
    if score := score_of(training):
        known |= {"metric": score.metric, "split": score.where, "score": score.value}
    lacks = card_in(training).decide.lacks if isinstance(training, Mapping) else {}
    return known | ({"lacks": lacks} if lacks else {})


def lacking(version: int | str, known: Mapping[str, Any]) -> list[str]:
    """A line for each target that a version was trained to keep and does not."""
    return [
        f"version {version} does not keep {printable(f'{target}: {why}', 400)}"
        for target, why in known.get("lacks", {}).items()
    ]


def breaking_changes(version: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Changes that break clients: different labels, different positive labels."""
    if not (before and after):
        return []
    messages = []
    gone, new = _without(before["labels"], after["labels"]), _without(after["labels"], before["labels"])
    if gone and new:
        messages.append(f"its labels differ: {_listed(new)} instead of {_listed(gone)}")
    elif gone or new:
        messages.append(f"its labels differ: {f'also {_listed(new)}' if new else f'no longer {_listed(gone)}'}")
    flagged, flags = ((each.get("decision") or {}).get("positives") or [] for each in (before, after))
    if flagged and set(flagged) != set(flags):
        flagged_here = f"its positive labels are {_listed(flags)}" if flags else "it names no positive label"
        messages.append(f"{flagged_here}; version {version} flags {_listed(flagged)}")
    return messages


def _without(labels: Sequence[str], excluded: Sequence[str]) -> list[str]:
    known = set(excluded)
    return [label for label in labels if label not in known]


def _listed(labels: Sequence[str]) -> str:
    rest = len(labels) - LABELS_SHOWN
    return ", ".join(map(printable, labels[:LABELS_SHOWN])) + (f" and {rest} more" if rest > 0 else "")


def not_alike(measured: Sequence[Mapping[str, Any]]) -> str | None:
    """How the measurements of two versions differ; None if they are comparable, or one was not measured."""
    if len(measured) < 2 or not all("score" in known for known in measured):
        return None
    differ = [name for name in ("split", "metric") if len({str(known.get(name)) for known in measured}) > 1]
    return f"not of the same {' and '.join(differ)}" if differ else None


def measure(known: Mapping[str, Any]) -> str:
    """The split and the metric of a score, in words."""
    return f"{known['split']} {known['metric']}"
