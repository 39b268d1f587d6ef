"""Asks a server about many items, and shows how far it is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onebert_server.client import TaskResult
from onebert_server.client.many import classify_many
from onebert_store.command import console

if TYPE_CHECKING:
    from onebert_server.client.questions import Item


def ask(url: str, api_key: str | None, items: "Sequence[Item]") -> list[TaskResult]:
    """The results of `classify_many`."""
    with console.progress() as bar:
        task = bar.add_task("answering", total=len(items))
        return classify_many(url, api_key, items, on_answered=lambda count: bar.advance(task, count))
