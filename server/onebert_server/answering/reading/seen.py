"""The parts of an answer that task metrics and the access log show: its labels and its top score."""

import random
import time
from collections.abc import Iterable, Sequence
from zlib import crc32

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_encoder.answering.scores import Array, own_activation, thresholds_of
from onebert_encoder.text.tokens import Text, halves_of
from onebert_server.access.context import Context
from onebert_server.answering.gateway import Item
from onebert_server.answering.plan import Question
from onebert_server.answering.reading.logits import Reading
from onebert_server.answering.resolution import Resolved
from onebert_server.observed import ABSTAINED, OTHER, Kept, Seen
from onebert_server.versions.facts import Facts
from onebert_store.errors import AnswerNotFinite
from onebert_store.file.manifest import WATCHED
from onebert_store.file.reference import MAX_ANSWERED


def note(
    context: Context,
    first: int,
    places: Sequence[int],
    questions: Sequence[Question],
    versions: Sequence[Resolved],
    readings: Iterable[Reading | AnswerNotFinite],
) -> None:
    """Notes answers of a request for metrics and logs, and maybe to be kept; `first` is the number of its place 0."""
    observed = context.observed
    answers, samples, sampled = observed.answers, observed.samples, list[Kept]()
    for place, question, version, reading in zip(places, questions, versions, readings, strict=True):
        # Numbers that are not finite are no answer.
        if not isinstance(reading, Reading):
            continue
        answer, keeping = reading.answer, version.keeping
        observed.tokens += reading.tokens
        observed.truncated += reading.truncated
        observed.abstained += not isinstance(answer, Labeling) and answer.abstained is True
        # Not a secret, so no `secrets`: see `_request_ids`.
        chosen = keeping and samples and random.random() < keeping.share  # noqa: S311
        if answers is None and not chosen:
            continue
        summary = seen(question.facts, answer, question.asked, question.text, question.truncated, reading.windows)
        if answers is not None:
            answers.append(summary)
        if chosen and keeping:
            own = f"{observed.answers_id}/{first + place}", time.time(), context.principal.name
            sampled.append(Kept(*own, halves_of(question.text), kept(answer, summary), keeping))
    if sampled and samples:
        samples(sampled)
        observed.any_kept = True


def seen(
    facts: Facts,
    answer: Answer,
    asked: Asked = PLAIN,
    text: Text = "",
    cut: bool = False,
    windows: int | None = None,
) -> Seen:
    """Returns the parts that are shown, with at most 64 labels; `windows` as in `Reading`."""
    labels: Sequence[str] = ()
    score = None
    if isinstance(answer, Prediction):
        if answer.ranks:
            score = answer.scores[answer.best]
            labels = [answer.names[answer.best]] if answer.labels is None else answer.labels
            labels = [ABSTAINED] if answer.abstained else labels
    elif isinstance(answer, Labeling):
        labels = [entity.label for entity in answer.entities or ()]
    elif isinstance(answer, Extraction):
        score = answer.answers[0].score if answer.answers else None
        labels = [ABSTAINED] if answer.abstained else ()
    # Other scores that a task or a request wants, such as logits, fit no histogram.
    share = score if score is not None and 0 <= score <= 1 else None
    # All further labels count as one more label.
    named = (*labels[:MAX_ANSWERED], OTHER) if len(labels) > MAX_ANSWERED else tuple(labels)
    hashed = None
    if facts.task_type in WATCHED and (asked is PLAIN or _own_rules(facts, asked, windows)):
        # The same in every process, which `hash` is not.
        hashed = crc32((text if isinstance(text, str) else "\0".join(text)).encode(errors="replace"))
    return Seen(facts.task, named, share, facts.version, hashed, cut)


def items_of(facts: Facts, answer: Answer) -> tuple[Item, ...]:
    """Returns the parts that a shadow's answer is compared in: labels of the whole text, or labeled spans."""
    if not isinstance(answer, Labeling):
        return tuple((label, 0, 0) for label in seen(facts, answer).labels)
    spans = answer.words if answer.entities is None else answer.entities
    return tuple((span.label, span.start, span.end) for span in spans)


def kept(answer: Answer, summary: Seen) -> Seen:
    """Returns the parts that are kept beside the text: the number of a regression, too, its first one."""
    return summary._replace(score=answer.score) if isinstance(answer, Prediction) and not answer.ranks else summary


def _own_rules(facts: Facts, asked: Asked, windows: int | None) -> bool:
    """Whether a request's options left the labels and the top score; `top_k` only hides other scores."""
    decision = facts.decision
    # A text in one window is read as without windows.
    if (windows or 1) > 1 and (asked.window is not None or decision is None or decision.window is None):
        return False
    if asked.threshold is not None and not _are_all(asked.threshold, thresholds_of(facts)):
        return False
    if asked.activation is not None and asked.activation != own_activation(facts):
        return False
    # Without thresholds and abstaining, reading the scores alone gives the same label.
    plain = decision is None or (decision.thresholds is None and not decision.abstains)
    return not asked.only_scores or (facts.task_type == "single_label" and plain)


def _are_all(threshold: float, thresholds: Array | None) -> bool:
    return thresholds is not None and bool((thresholds == threshold).all())
