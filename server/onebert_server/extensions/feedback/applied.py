"""The kept answers of a task in the file of `onebert apply`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onebert_server.cli.apply.key import Key
from onebert_server.cli.apply.part import Change, Part
from onebert_server.client import Client
from onebert_server.contract.feedback import SamplesFacts
from onebert_store.errors import InvalidInput
from onebert_store.file.manifest import Manifest
from onebert_store.registry.keeping import MAX_DAYS, MAX_SAMPLES, Keeping, check_keeping


class _Kept:
    """`kept`: the share, the days and the number of answers that are kept, with the defaults of the route."""

    key, title, before_moves = "kept", "kept answers", False

    def wanted(self, key: Key, folder: Path) -> Keeping:
        table = key.table(["share", "days", "most"])
        if "share" not in table:
            raise key.wrong("it has no share: the probability with which an answer is kept")
        days = table["days"].whole(1, MAX_DAYS) if "days" in table else 30
        most = table["most"].whole(1, MAX_SAMPLES) if "most" in table else 10_000
        keeping = Keeping(table["share"].number(), days, most)
        try:
            check_keeping(keeping)
        except InvalidInput as error:
            raise key.refused(error) from None
        return keeping

    def present(self, client: Client, task: str) -> SamplesFacts | None:
        facts = client.samples(task)
        return facts if facts.share is not None else None

    def change(
        self, task: str, wanted: Keeping, present: SamplesFacts | None, manifest: Callable[[], Manifest]
    ) -> Change | None:
        before, after = present and _rule(present), (wanted.share, wanted.days, wanted.most)
        if before == after:
            return None
        words = f"{_words(*before)} → {_words(*after)}" if before else _words(*after)
        return Change(words, lambda client: client.set_samples(task, *after))

    def removal(self, task: str, present: SamplesFacts) -> Change:
        words = f"{_words(*_rule(present))}; {present.kept:,} kept answers are deleted"
        return Change(words, lambda client: client.delete_samples(task))

    def written(self, present: SamplesFacts) -> Mapping[str, Any]:
        return dict(zip(("share", "days", "most"), _rule(present), strict=True))


def _rule(facts: SamplesFacts) -> tuple[float, int, int]:
    return facts.share or 0, facts.days or 0, facts.most or 0


def _words(share: float, days: int, most: int) -> str:
    return f"{share:.4g} of the answers for {days} days, at most {most:,}"


PART: Part = _Kept()
