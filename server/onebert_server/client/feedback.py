"""Client methods for kept answers, feedback, and the review queue."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from onebert_server.client.exchange import SentQuestions, quoted
from onebert_server.contract.feedback import FeedbackResponse, Recorded, SamplesFacts
from onebert_server.contract.review import FeedbackRow, FeedbackRows, Order, ReviewQueue, SampleRows


class FeedbackCalls(SentQuestions):
    """The methods for kept answers and feedback; those that read kept texts take a key with the scope `review`."""

    async def samples(self, task: str) -> SamplesFacts:
        """How much of a task's answers is kept, and how many are kept now."""
        return await self._decoded(SamplesFacts, "GET", _path(task))

    async def set_samples(self, task: str, share: float, days: int = 30, most: int = 10_000) -> SamplesFacts:
        """Keeps answers of a task with their texts; raises SamplesKeyNeeded if the server has no key.

        Args:
            share: probability with which an answer is kept.
            days: for how long an answer is kept; texts with feedback stay.
            most: answers that are kept, the latest ones.
        """
        return await self._decoded(SamplesFacts, "PUT", _path(task), {"share": share, "days": days, "most": most})

    async def delete_samples(self, task: str) -> None:
        """Keeps no more answers of a task, and deletes the kept ones."""
        await self._ask("DELETE", _path(task))

    async def delete_sample(self, task: str, answer_id: str) -> None:
        """Deletes one kept answer, or a text by the identifier of its feedback; raises SampleNotFound."""
        await self._ask("DELETE", f"{_path(task)}/{quoted(answer_id)}", repeatable=False)

    async def feedback(self, items: Sequence[Mapping[str, Any]]) -> list[Recorded]:
        """Records the right labels of at most 64 kept answers or texts, all or none.

        Args:
            items: with `id` of an answer, or `task` and `text`; one of `label`, `labels`, `spans` and `value`; and
                `kind`, `identifier` and `explanation` if there are any.

        Raises:
            SampleNotFound: no answer with an id is kept.
            InvalidInput: a label has another form than the task's, or is a new one, and the task keeps no texts; a text
                lacks an identifier, and the server has no key.
        """
        # Repeatable, because a row replaces the one with its identifier.
        return (await self._decoded(FeedbackResponse, "POST", "/v1/feedback", {"data": list(items)})).data

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


def _path(task: str) -> str:
    return f"/v1/tasks/{quoted(task)}/samples"
