"""`onebert check --labels`: lists rows with probably wrong labels and their places."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onebert_store.command import console
from onebert_store.errors import InvalidSettings
from onebert_store.file.strict_json import printable
from onebert_training.commands.showing import percent
from onebert_training.data.examination import MAX_LISTED, Examination
from onebert_training.data.examples import Split
from onebert_training.data.splitting import check_divisible
from onebert_training.fit.inputs import frozen_vectors
from onebert_training.insight.suspects import find_suspects, folds_of, out_of_fold
from onebert_training.options import Machine

_SHOWN = 20  # rows in a table
_TEXT = 80  # characters of a text in a table


def suspects_of(examination: Examination, max_length: int, machine: Machine) -> dict[str, Any]:
    """Rows of all splits with suspicious labels, surest first, as JSON with the share of labels confirmed.

    Raises InvalidSettings if the data is not single_label, and InvalidData if all rows have the same text.
    """
    if examination.dataset is None or examination.dataset.task_type != "single_label":
        raise InvalidSettings("--labels needs data with one label for each text")
    texts = [text for split, _ in examination.rows.values() for text in split.texts]
    places = [place for _, of_split in examination.rows.values() for place in of_split]
    gold = np.concatenate([split.gold for split, _ in examination.rows.values()])
    labels, examples = examination.dataset.labels, Split(tuple(texts), gold)
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
            "file": places[suspect.row].file,
            places[suspect.row].unit: places[suspect.row].number,
            "text": texts[suspect.row],
            "label": labels[suspect.label],
            "suggested": labels[suspect.suggested],
            "ratio": round(suspect.ratio, 4),
        }
        for suspect in suspects[:MAX_LISTED]
    ]
    answered = round(float(np.mean(probabilities.argmax(axis=1) == gold)), 4)
    return {"rows": len(suspects), "of": len(texts), "answered": answered, "first": first}


def show_suspects(facts: Mapping[str, Any]) -> None:
    """Prints the surest suspects as a table."""
    console.say(f"labels to review: {facts['rows']:,} of {facts['of']:,} rows, the most certain suggestions first")
    if not facts["rows"]:
        return
    rows = []
    for suspect in facts["first"][:_SHOWN]:
        unit = "line" if "line" in suspect else "row"
        text = suspect["text"] if isinstance(suspect["text"], str) else " | ".join(suspect["text"])
        names = printable(suspect["label"]), printable(suspect["suggested"])
        rows.append(
            (f"{suspect['file']} {unit} {suspect[unit]}", printable(text, _TEXT), *names, f"{suspect['ratio']:.3f}")
        )
    console.show(("where", "text", "label", "suggested", "ratio"), rows, numbers=["ratio"])
    if facts["rows"] > _SHOWN:
        console.say(f"and {facts['rows'] - _SHOWN:,} more; --json has the first {MAX_LISTED:,}")
    console.say(
        "(suggested by models of rows with other texts; ratio: probability of the label / of the suggested one)"
    )
    confirmed = percent(facts["answered"])
    console.say(f"they confirm the label of {confirmed} of all rows: the fewer, the more of the labels above are right")
    console.say("read them from the top, and correct wrong labels in the file")
