"""The kept answers of a task in the file of `onebert apply`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from onebert_server.cli.apply.form import Part, PartChange
from onebert_server.client import Client, TaskStatus
from onebert_server.contract.feedback import SamplesFacts
from onebert_server.extensions.feedback.schemas import SamplesRequest
from onebert_store.file.manifest import Manifest


class _Kept:
    """`kept`: what the route takes, with its defaults."""

    key, title, before_moves, model = "kept", "kept answers", False, SamplesRequest

    def may_be_of(self, status: TaskStatus) -> bool:
        return status.kept is not None

    def present(self, client: Client, task: str) -> SamplesFacts | None:
        facts = client.samples(task)
        return facts if facts.share is not None else None

    def change(
        self, task: str, wanted: SamplesRequest | None, present: SamplesFacts | None, manifest: Callable[[], Manifest]
    ) -> PartChange | None:
        before = _words(**self.written(present)) if present else ""
        if wanted is None:
            words = f"{before}; {present.kept if present else 0:,} kept answers are deleted"
            return PartChange(words, lambda client: client.delete_samples(task))
        rule = wanted.model_dump()
        if present and rule == self.written(present):
            return None
        words = f"{before} → {_words(**rule)}" if before else _words(**rule)
        return PartChange(words, lambda client: client.set_samples(task, **rule))

    def of_move(self, alias: str, numbers: Collection[int], wanted: object, present: object) -> str:
        return ""

    def written(self, present: SamplesFacts) -> Mapping[str, Any]:
        return {"share": present.share, "days": present.days, "most": present.most}


def _words(share: float, days: int, most: int) -> str:
    return f"{share:.4g} of the answers for {days} days, at most {most:,}"


PART: Part = _Kept()
