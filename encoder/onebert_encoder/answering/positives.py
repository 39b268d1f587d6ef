"""The labels that count as positive, and the ones that apply to an answer."""

from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.scores import DEFAULT_THRESHOLD, Outputs, own_activation
from onebert_store.errors import InvalidInput


def positives_of(outputs: Outputs) -> list[str]:
    """The positive labels that the manifest names; raises InvalidInput without any."""
    positives = outputs.decision.positives if outputs.decision is not None else None
    if positives is None:
        raise InvalidInput(
            "the task does not say which of its labels are positive: `onebert calibrate FILE --positive LABEL`, then "
            "`onebert push`, says it"
        )
    return positives


def flagged(prediction: Prediction, outputs: Outputs) -> list[str]:
    """The positive labels over their thresholds; raises InvalidInput for a task without positives or thresholds."""
    positives = positives_of(outputs)
    if prediction.labels is not None:
        selected = set(prediction.labels)
        return [label for label in positives if label in selected]
    if outputs.task_type == "regression":
        raise InvalidInput("the task does not say over which value it is positive")
    scores = dict(zip(prediction.names, prediction.scores, strict=True))
    return [label for label in positives if scores[label] > DEFAULT_THRESHOLD[own_activation(outputs)]]
