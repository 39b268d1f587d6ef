"""Client methods for kept samples, the feedback on them, and the review queue."""

from urllib.parse import urlencode

from onebert_server.client.exchange import Asking, quoted
from onebert_server.contract.review import FeedbackRow, FeedbackRows, Order, ReviewQueue, SampleRows


class ReviewCalls(Asking):
    """The methods that read kept texts; each takes a key with the scope `review`."""

    async def review(self, task: str, by: Order = "margin", limit: int = 20) -> ReviewQueue:
        """Kept texts without feedback, answered anew, the most informative to label first.

        Args:
            by: `margin`: the answer is uncertain; `disagreement`: versions answer differently.
            limit: at most 100.
        """
        query = urlencode({"by": by, "limit": limit})
        return await self._decoded(ReviewQueue, "GET", f"/v1/tasks/{quoted(task)}/review?{query}")

    async def feedback_rows(self, task: str) -> list[FeedbackRow]:
        """All feedback of a task whose text is kept, by identifier."""
        pages = self._pages(FeedbackRows, f"/v1/tasks/{quoted(task)}/feedback")
        return [row async for page in pages for row in page.feedback]

    async def sample_rows(self, task: str, after: str = "") -> SampleRows:
        """A page of a task's kept answers behind the id `after`, each with the latest feedback on it."""
        path = f"/v1/tasks/{quoted(task)}/sample-rows?{urlencode({'after': after})}"
        return await self._decoded(SampleRows, "GET", path)
