"""Client methods for kept answers and feedback."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.client.exchange import Asking, quoted
from onebert_server.contract.feedback import FeedbackResponse, Recorded, SamplesFacts


class FeedbackCalls(Asking):
    """The methods for kept answers and feedback."""

    async def samples(self, task: str) -> SamplesFacts:
        """How much of a task's answers is kept, and how many are kept now."""
        return await self._decoded(SamplesFacts, "GET", _path(task))

    async def set_samples(self, task: str, share: float, days: int = 30, most: int = 10_000) -> SamplesFacts:
        """Keeps answers of a task with their texts; raises SamplesKeyNeeded if the server has no key.

        Args:
            share: probability with which an answer is kept.
            days: for how long a text is kept.
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
            InvalidInput: a label is not one of the task's; a text lacks an identifier, and the server has no key.
        """
        # Repeatable, because a row replaces the one with its identifier.
        return (await self._decoded(FeedbackResponse, "POST", "/v1/feedback", {"data": list(items)})).data


def _path(task: str) -> str:
    return f"/v1/tasks/{quoted(task)}/samples"
