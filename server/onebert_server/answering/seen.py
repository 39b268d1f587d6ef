"""The parts of an answer that task metrics and the access log show: its labels and its top score."""

from collections.abc import Sequence
from zlib import crc32

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_encoder.answering.scores import own_activation
from onebert_encoder.text.tokens import Text, halves_of
from onebert_server.observed import ABSTAINED, OTHER, Seen
from onebert_server.versions.facts import Facts
from onebert_store.file.manifest import WATCHED
from onebert_store.file.reference import MAX_ANSWERED


def seen(facts: Facts, answer: Answer | None, asked: Asked = PLAIN, text: Text = "") -> Seen:
    """Returns the parts that are shown, with at most 64 labels; `answer` is None if its numbers were not finite."""
    labels: Sequence[str] = ()
    score = None
    match answer:
        case Prediction(ranks=True):
            score = answer.score
            labels = [ABSTAINED] if answer.abstained else [answer.label] if answer.labels is None else answer.labels
        case Labeling(entities=list(entities)):
            labels = [entity.label for entity in entities]
        case Extraction(answers=spans):
            score = spans[0].score if spans else None
            labels = [ABSTAINED] if answer.abstained else ()
    # All further labels count as one more label.
    named = (*labels[:MAX_ANSWERED], OTHER) if len(labels) > MAX_ANSWERED else tuple(labels)
    watched = facts.task_type in WATCHED and answer is not None and (asked is PLAIN or _own_rules(facts, asked))
    # The same in every process, which `hash` is not.
    hashed = crc32("\0".join(halves_of(text)).encode(errors="replace")) if watched else None
    return Seen(facts.task, named, None if score is None else _share(score), facts.version, hashed)


def kept(answer: Answer, summary: Seen) -> Seen:
    """Returns the parts that are kept beside the text: the number of a regression, too, its first one."""
    return summary._replace(score=answer.score) if isinstance(answer, Prediction) and not answer.ranks else summary


def _own_rules(facts: Facts, asked: Asked) -> bool:
    """Whether a request's options leave the labels and the top score; `top_k` only hides other scores."""
    if asked.window is not None or asked.whole or asked.threshold is not None:
        return False
    if asked.activation is not None and asked.activation != own_activation(facts):
        return False
    # Without thresholds and abstaining, reading the scores alone gives the same label.
    decision = facts.decision
    plain = decision is None or (decision.thresholds is None and decision.abstain is None)
    return not asked.only_scores or (facts.task_type == "single_label" and plain)


def _share(score: float) -> float | None:
    """Returns a probability; other scores that a task or a request wants, such as logits, fit no histogram."""
    return score if 0 <= score <= 1 else None
