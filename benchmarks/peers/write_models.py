"""Writes merged models, a folder for each task, for servers that load whole models.

Arguments: BASE OUT LENGTH DELTA…
"""

import sys
from pathlib import Path

from transformers import AutoModelForSequenceClassification, AutoTokenizer

from merged import merge


def main() -> None:
    """Writes each folder under another name and renames it when it is complete, so that a folder's name means it is."""
    base, out, length, *files = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(base, model_max_length=int(length))
    for task, file in enumerate(files):
        folder = Path(out) / f"task-{task}"
        if folder.is_dir():
            continue
        labels = {0: "no", 1: "yes"}
        model = AutoModelForSequenceClassification.from_pretrained(
            base, id2label=labels, label2id={name: i for i, name in labels.items()}
        )
        merge(model, file)
        unfinished = folder.with_suffix(".unfinished")
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)


main()
