"""docs/guide/api.md names every route, every error and every field of an answer."""

from pathlib import Path
from typing import get_args

import pytest

from onebert_encoder.answering.answer import TASK_TYPES
from onebert_server.http.auth import OPEN_PATHS
from onebert_server.http.problems import HTTP_ERRORS
from onebert_server.http.routes import classify as routes_classify
from onebert_server.http.routes import system as routes_system
from onebert_server.http.routes import tasks as routes_tasks
from onebert_server.http.schemas.questions import Result
from onebert_server.metrics import Metrics
from onebert_store.errors import OneBertError
from onebert_store.file.manifest import TaskType

DOCS = Path(__file__).parents[3] / "docs"
API = (DOCS / "guide" / "api.md").read_text()

# Raised by training, by the client or between processes; no server answers with them.
NOT_ON_THE_WIRE = {
    "unsupported-base",
    "base-not-found",
    "invalid-method",
    "invalid-data",
    "invalid-settings",
    "server-unreachable",
    "store-locked",
    "whole-text-needed",
}


def _error_types(root=OneBertError):
    yield root
    for kind in root.__subclasses__():
        yield from _error_types(kind)


def _rows(first):
    """Cells of the rows of the table whose first column has this heading."""
    table = API.partition(f"| {first} |")[2].partition("\n\n")[0]
    return [line.split("|") for line in table.splitlines()[2:]]


def _catalogue():
    rows = [line.split("|") for line in API.splitlines() if line.startswith("| `") and line.count("|") == 4]
    return {row[1].strip().strip("`"): int(row[2]) for row in rows if row[2].strip().isdigit()}


def test_every_error_is_in_the_catalogue_with_its_status():
    own = {kind.code: kind.status for kind in _error_types() if "code" in vars(kind)}
    http = {code: status for status, (code, _) in HTTP_ERRORS.items()}
    expected = {code: status for code, status in (own | http).items() if code not in NOT_ON_THE_WIRE}
    assert _catalogue() == expected


@pytest.mark.parametrize("routes", [routes_classify, routes_system, routes_tasks])
def test_every_route_is_documented(routes):
    for route in routes.router.routes:
        for method in route.methods:
            assert f"`{method} {route.path}`" in API


def test_every_field_of_a_result_is_documented():
    assert [name for name in Result.model_fields if f"`{name}`" not in API] == []


def test_every_task_type_says_what_it_takes_and_gives():
    documented = {row[1].strip().strip("`") for row in _rows("task type")}
    assert documented == set(TASK_TYPES) == set(get_args(TaskType))


def test_open_paths_are_named():
    for path in OPEN_PATHS:
        named = "/page/" if path.startswith("/page/") else path
        assert f"`{named}`" in API


def test_every_metric_is_documented():
    text = (DOCS / "guide" / "operations.md").read_text()
    metrics = Metrics(tasks=1)
    for family in metrics.registry.collect():
        assert f"`{family.name}`" in text
