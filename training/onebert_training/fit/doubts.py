"""What the measured split cannot say of a result: whether it ever answers labels that only training rows have."""

from onebert_training.data.checks import listed
from onebert_training.fit.evaluation import Model
from onebert_training.fit.run import Run


def unseen_labels(run: Run, model: Model, split: str) -> tuple[str, ...]:
    """A warning where labels that a split lacks are not even answered to the training rows that have them."""
    objective, train = run.objective, run.data.splits["train"]
    trained, there = objective.label_counts(train), objective.label_counts(run.data.splits[split])
    if trained is None or there is None:
        return ()
    absent = (trained > 0) & (there == 0)
    rows = objective.rows_with(train, absent)
    if not rows.size:
        return ()
    tokens = [run.inputs.splits["train"].tokens[i] for i in rows.tolist()]
    logits = run.logits(model, "train", rows.tolist())
    never = objective.never_answered(train.take(rows), tokens, logits)
    names = [name for name, gone in zip(objective.labels, absent, strict=True) if gone and name in never]
    if not names:
        return ()
    return (f"never answers {listed(names)}, not even in training; no {split} row has it",)
