"""Tasks of every kind on a server of each family: one mixed request, against the plain Hugging Face model."""

from pathlib import Path

import pytest

from bases import tiny_base
from servers import Server, Task, assert_answers

KINDS = ("frozen", "bitfit", "lora", "sparse", "scale", "everything")
TEXTS = ("please help, my order is late", "where is the 2nd parcel? " * 5)


@pytest.mark.parametrize("family", ["mpnet", "modernbert", "deberta-v2"])
def test_a_server_answers_as_the_plain_model_of_the_family_does(family: str, tmp_path: Path) -> None:
    folder = tiny_base(family)
    tasks = {kind: Task(kind, "mean", seed=seed, folder=folder) for seed, kind in enumerate(KINDS)}
    with Server(tmp_path, base=folder) as server, server.client() as client:
        # Golden logits of the plain model are computed again at upload.
        server.push({kind: task.with_golden() for kind, task in tasks.items()})
        items = [(kind, text) for text in TEXTS for kind in KINDS]
        answers = client.classify_items(items)
        assert client.base()["batch_invariant"] is True
    for (kind, text), answer in zip(items, answers, strict=True):
        assert_answers(answer, tasks[kind].scores(text))
