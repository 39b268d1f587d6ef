"""`onebert check --labels`: lists rows with probably wrong labels and their places."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onebert_store.command import console
from onebert_store.errors import InvalidSettings
from onebert_store.file.strict_json import shown
from onebert_training.commands.showing import percent
from onebert_training.data.examination import MAX_LISTED, Examination
from onebert_training.data.examples import Split
from onebert_training.data.splitting import check_divisible
from onebert_training.fit.inputs import frozen_vectors
from onebert_training.insight.suspects import find_suspects, folds_of, out_of_fold
from onebert_training.options import Machine

_SHOWN = 20  # rows in a table
_TEXT = 80  # characters of a text in a table


def suspects_of(found: Examination, max_length: int, machine: Machine) -> dict[str, Any]:
    """Rows of all splits with suspicious labels, surest first, as JSON with the share of labels confirmed.

    Raises InvalidSettings if the data is not single_label, and InvalidData if all rows have the same text.
    """
    if found.dataset is None or found.dataset.task_type != "single_label":
        raise InvalidSettings("--labels looks at data with one label for each text")
    texts = [text for split, _ in found.rows.values() for text in split.texts]
    places = [place for _, of_split in found.rows.values() for place in of_split]
    gold = np.concatenate([split.gold for split, _ in found.rows.values()])
    labels, examples = found.dataset.labels, Split(tuple(texts), gold)
    check_divisible(examples, "single_label")
    loaded = machine.load()
    with console.busy(f"reading {len(texts):,} texts"):
        vectors = frozen_vectors(loaded, texts, max_length)
    with console.busy("comparing labels"):
        folds = folds_of(examples)
        probabilities = out_of_fold(labels, vectors, examples, folds)
        suspects = find_suspects(probabilities, gold, folds)
    first = [
        {
            "file": places[one.row].file,
            places[one.row].unit: places[one.row].number,
            "text": texts[one.row],
            "label": labels[one.label],
            "suggested": labels[one.suggested],
            "ratio": round(one.ratio, 4),
        }
        for one in suspects[:MAX_LISTED]
    ]
    answered = round(float(np.mean(probabilities.argmax(axis=1) == gold)), 4)
    return {"rows": len(suspects), "of": len(texts), "answered": answered, "first": first}


def show_suspects(facts: Mapping[str, Any]) -> None:
    """Prints the surest suspects as a table."""
    console.say(
        f"labels to look at: {facts['rows']:,} of {facts['of']:,} rows, those first that are the surest of another"
    )
    if not facts["rows"]:
        return
    rows = []
    for one in facts["first"][:_SHOWN]:
        unit = "line" if "line" in one else "row"
        text = one["text"] if isinstance(one["text"], str) else " | ".join(one["text"])
        names = shown(one["label"]), shown(one["suggested"])
        rows.append((f"{one['file']} {unit} {one[unit]}", shown(text, _TEXT), *names, f"{one['ratio']:.3f}"))
    console.show(("where", "text", "label", "suggested", "ratio"), rows, numbers=["ratio"])
    if facts["rows"] > _SHOWN:
        console.say(f"and {facts['rows'] - _SHOWN:,} more; --json has the first {MAX_LISTED:,}")
    console.say("(rows with other texts suggest; ratio: how probable the label is beside the suggested one)")
    own = percent(facts["answered"])
    console.say(
        f"for {own} of all rows they suggest the row's own label: the fewer, the more of the labels above are right"
    )
    console.say("next: read them from the top, and mend the file where the label is wrong")
