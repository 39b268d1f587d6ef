"""Reads the texts on which a delta is compared with its checkpoint, and those on which it learns from it."""

from typing import NamedTuple

import numpy as np

from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import TaskType
from onebert_training.data.dataset import load_texts
from onebert_training.data.examples import Split
from onebert_training.data.splitting import SPLIT_SEED, hold_out
from onebert_training.interop.checkpoint.options import CheckpointOptions

# More texts would hardly make the agreement more certain, and slow down every probe.
_MOST_TEXTS = 2000
# Texts of --distil that are compared on, if there are no others.
_SHARE = 0.2
_LEAST = 50


class Texts(NamedTuple):
    """The name of the data that is compared on, its texts, and the texts to learn on; none is in both."""

    data: str
    compared: list[Text]
    learned: list[Text]


def read_texts(options: CheckpointOptions, task_type: TaskType) -> Texts:
    """At most `_MOST_TEXTS` texts of --data, else of --distil, and the other texts of --distil.

    Raises InvalidData if they cannot be read, are too few, or are not the texts that the task takes.
    """
    learned: list[Text] = []
    if options.distil is not None:
        name, learned = load_texts(options.distil, options.columns, options.encoding, task_type, split="train")
    if options.data is not None:
        data, compared = load_texts(options.data, options.columns, options.encoding, task_type)
        if len(compared) < 2:
            raise InvalidData(
                "--data has one text, and the answers of the model and of its delta are compared on two at least; "
                "give more texts like those that the task is for"
            )
        compared = compared[:: -(-len(compared) // _MOST_TEXTS)]
        compared_texts = set(compared)
        learned = [text for text in learned if text not in compared_texts]
    if options.distil is not None:
        if len(learned) < _LEAST:
            apart = " that are not in --data" if options.data is not None else ""
            raise InvalidData(f"--distil has {len(learned)} texts{apart}; answers are learned on {_LEAST} at least")
        if options.data is None:
            rows = Split(tuple(learned), np.zeros(len(learned)))
            rest, held_out = hold_out(rows, "regression", _SHARE, _MOST_TEXTS, SPLIT_SEED)
            data, compared, learned = name, list(held_out.texts), list(rest.texts)
    return Texts(data, compared, learned)
