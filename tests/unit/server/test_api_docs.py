"""The guide names every field of an answer, every task type and every metric."""

from pathlib import Path
from typing import get_args

from onebert_encoder.answering.answer import TASK_TYPES
from onebert_server.contract.answers import Result
from onebert_server.telemetry.metrics import Metrics
from onebert_store.file.manifest import TaskType

DOCS = Path(__file__).parents[3] / "docs"
API = (DOCS / "guide" / "api.md").read_text()


def _rows(first):
    """Cells of the rows of the table whose first column has this heading."""
    table = API.partition(f"| {first} |")[2].partition("\n\n")[0]
    return [line.split("|") for line in table.splitlines()[2:]]


def test_every_field_of_a_result_is_documented():
    assert [name for name in Result.__struct_fields__ if f"`{name}`" not in API] == []


def test_every_task_type_says_what_it_takes_and_gives():
    documented = {row[1].strip().strip("`") for row in _rows("task type")}
    assert documented == set(TASK_TYPES) == set(get_args(TaskType))


def test_every_metric_is_documented():
    text = (DOCS / "reference" / "monitoring.md").read_text()
    metrics = Metrics(tasks=1)
    for family in metrics.registry.collect():
        assert f"`{family.name}`" in text
