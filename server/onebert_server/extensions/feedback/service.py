"""The parts of feedback in a process with an engine, and the parameter by which its routes get them."""

from typing import Annotated, NamedTuple

from fastapi import Depends

from onebert_server.extensions.feedback.keeping import SampleKeeper
from onebert_server.extensions.feedback.recording import Recorder
from onebert_server.extensions.feedback.reviews import Reviews
from onebert_server.extensions.feedback.verdicts import Verdicts
from onebert_server.http.routes.runtime_of import part_of
from onebert_store.samples.store import SampleStore


class FeedbackService(NamedTuple):
    """Keeps chosen answers in a store, records feedback, chooses texts to label, judges versions by feedback."""

    store: SampleStore
    keeper: SampleKeeper
    recorder: Recorder
    reviews: Reviews
    verdicts: Verdicts


ServiceOf = Annotated[FeedbackService, Depends(part_of(FeedbackService))]
