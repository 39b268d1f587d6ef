"""Chooses the default pooling of few pairs: both texts as one, or each text on its own."""

from dataclasses import replace

from onebert_store.file.manifest import PER_TOKEN, SIAMESE
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.methods.grammar import AUTO
from onebert_training.methods.methods import parse_method
from onebert_training.tasks.metrics import is_better

FEW = 1000
"""From this number of training pairs on, training does better with both texts as one (decision 54)."""


def read_pairs(inputs: TaskInputs, settings: Settings, task: str) -> Settings:
    """Settings with a pooling: few pairs get the one by which the frozen base answers better.

    The method and the exact heads beside it share this pooling: a result is never compared with a head that reads pairs
    in the worse way. Raises as `Run`, and NotFinite if the base's vectors are not finite.
    """
    kind, pairs = inputs.data.task_type, len(inputs.data.splits["train"])
    open_to_both = inputs.data.has_pairs and kind not in PER_TOKEN and settings.pooling is None
    if not open_to_both or pairs >= FEW or not _gives_a_delta(settings, inputs):
        return settings
    alone = replace(settings, method="head", time_budget=None)
    as_one, apart = (Run(inputs, replace(alone, pooling=pooling), task) for pooling in ("mean", SIAMESE))
    one, two = (run.yardsticks.answers for run in (as_one, apart))
    if one is None or two is None:
        return settings
    ahead = is_better(apart.metric, two.scores[apart.metric], one.scores[apart.metric])
    return replace(settings, pooling=SIAMESE if ahead else "mean")


def _gives_a_delta(settings: Settings, inputs: TaskInputs) -> bool:
    """Whether the method's result is a delta, as for all of `auto`'s methods: no checkpoint can compare two texts."""
    if settings.method == AUTO:
        return True
    base = inputs.base
    return parse_method(settings.method).plan(base.anatomy, "mean", base.spec.num_parameters).servable
