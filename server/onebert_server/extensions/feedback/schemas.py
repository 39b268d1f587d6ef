"""Bodies of feedback, and of how much of a task's answers is kept."""

from typing import Annotated

from pydantic import Field

from onebert_server.extensions.feedback.given import Given
from onebert_server.http.schemas.common import RequestBody
from onebert_server.limits import MAX_ITEMS
from onebert_store.registry.keeping import MAX_DAYS, MAX_SAMPLES, Keeping


class FeedbackRequest(RequestBody):
    """Right labels of kept answers or of texts."""

    data: list[Given] = Field(min_length=1, max_length=MAX_ITEMS)


class SamplesRequest(RequestBody):
    """How much of a task's answers is kept."""

    share: Annotated[float, Field(gt=0, le=1, description="probability with which an answer is kept")]
    days: Annotated[int, Field(ge=1, le=MAX_DAYS, description="for how long an answer is kept")] = 30
    most: Annotated[int, Field(ge=1, le=MAX_SAMPLES, description="answers that are kept, the latest ones")] = 10_000

    @property
    def keeping(self) -> Keeping:
        return Keeping(self.share, self.days, self.most)
