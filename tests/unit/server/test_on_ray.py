"""What a cluster is told, without one: which replicas a task is kept on, how many there are, what a node counts."""

import pickle
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from onebert_ray.application import Layout, application, layout_of
from onebert_ray.measured import Part, together
from onebert_ray.router import HALF_LIFE, MAX_TASKS, ROOM, Spread, weight
from onebert_ray.scaling import ByWork, Work
from onebert_server.observed import FinishedRequest, Seen
from onebert_server.settings import load_settings
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import InvalidSettings

REPLICAS = [f"replica-{number}" for number in range(5)]
TASKS = [f"task-{number}" for number in range(1000)]


def first(task, replicas):
    return max(replicas, key=lambda replica: weight(task, replica))


def test_a_replica_that_goes_moves_its_own_tasks_and_no_others():
    before = {task: first(task, REPLICAS) for task in TASKS}
    after = {task: first(task, REPLICAS[1:]) for task in TASKS}
    assert {task for task in TASKS if before[task] != after[task]} == {
        task for task in TASKS if before[task] == REPLICAS[0]
    }
    # 200 each in the mean; a fair hash is farther off than six standard deviations (of 12.6) once in a billion times.
    for replica in REPLICAS:
        assert abs(sum(seen == replica for seen in before.values()) - 200) < 76


def test_a_task_is_on_as_many_replicas_as_its_share_asks_for():
    spread = Spread(lambda: 0.0)
    assert spread.ask("alone", 8) == 8
    for _ in range(100):
        for task in TASKS[:99]:
            spread.ask(task, 8)
    assert spread.ask(TASKS[0], 8) == 1
    for _ in range(9_900):
        hot = spread.ask("hot", 8)
    # Half of all that was asked is four of the eight, and some room.
    assert hot == 4 * ROOM


def test_what_was_asked_long_ago_counts_no_more():
    now = [0.0]
    spread = Spread(lambda: now[0])
    for _ in range(1000):
        spread.ask("old", 4)
    now[0] = 30 * HALF_LIFE
    assert spread.ask("new", 4) == 4
    for number in range(2 * MAX_TASKS):
        spread.ask(f"task-{number}", 4)
    assert len(spread._asked) == MAX_TASKS


def test_work_is_what_was_computed_a_second_and_what_waits():
    now, busy, waiting = [0.0], [0.0], [0.0]
    work = Work(lambda: busy[0], lambda: waiting[0], lambda: now[0])
    now[0], busy[0], waiting[0] = 4.0, 2.0, 0.25
    assert work.per_second() == 0.75
    now[0] = 6.0
    assert work.per_second() == 0.25


@pytest.mark.parametrize(
    ("work", "wanted"), [([0.0], 1), ([0.3], 1), ([0.9, 0.9], 3), ([0.1, 0.1, 0.1], 1), ([2.5], 4)]
)
def test_there_are_as_many_replicas_as_the_work_keeps_busy(work, wanted):
    reports = {"work": dict(enumerate(work))}
    assert ByWork(0.7)(SimpleNamespace(aggregated_metrics=reports, target_num_replicas=2)) == (wanted, {})


def test_without_reports_the_number_of_replicas_stays():
    assert ByWork(0.7)(SimpleNamespace(aggregated_metrics=None, target_num_replicas=2)) == (2, {})


def test_the_text_of_a_node_has_every_count_of_each_process_once():
    counted = {}
    for name in ("front end", "replica"):
        metrics = counted[name] = Metrics(tasks=2)
        metrics.request_began()
        metrics.requests_ended(
            [FinishedRequest("POST", "/v1/classify", 200, 0.02, None, [Seen("task", ("label",), 0.9)])]
        )
        metrics.observe_batch(3, 30, 0.01)
    parts = [Part("node", name, metrics.exposition().decode()) for name, metrics in counted.items()]
    shown = counts(together(parts).decode())
    assert shown == {
        (("process", part.process), *key): value for part in parts for key, value in counts(part.text).items()
    }


def counts(text):
    """Every sample of a text by its labels, that of the process first, and its name."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    by_labels = {
        (*sorted(sample.labels.items(), key=lambda label: label[0] != "process"), sample.name): sample.value
        for sample in samples
    }
    assert len(by_labels) == len(samples)
    return by_labels


@pytest.mark.parametrize(
    ("asked", "least", "most"), [({}, 1, 1), ({"replicas": 2}, 2, 2), ({"replicas": "2-16", "gpus": 1}, 2, 16)]
)
def test_layouts(asked, least, most):
    layout = layout_of(asked)
    assert (layout.min_replicas, layout.max_replicas) == (least, most)


@pytest.mark.parametrize(
    "asked", [{"replicas": "0"}, {"replicas": "4-2"}, {"replicas": "many"}, {"cpus": 0}, {"gpus": -1}, {"replica": 1}]
)
def test_what_is_no_layout_is_refused_by_the_name_of_what_is_wrong(asked):
    with pytest.raises(InvalidSettings, match=next(iter(asked))):
        layout_of(asked)


def test_ray_does_not_show_credentials_of_a_collector(monkeypatch):
    secret = {"OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=a-secret-of-this-test"}
    for name, value in secret.items():
        monkeypatch.setenv(name, value)
    front_ends = application(load_settings(registry="postgresql://x/y"), Layout())._bound_deployment
    replicas = front_ends.init_args[1]._bound_deployment
    for deployment in (front_ends, replicas):
        assert deployment.init_args[-1] == secret
        # Ray Serve gives these to whoever asks for its status.
        shown = str(deployment.ray_actor_options)
        assert "env_vars" in shown
        assert "a-secret-of-this-test" not in shown


def test_front_ends_on_a_cluster_have_no_secret_of_the_settings(monkeypatch):
    monkeypatch.setenv("ONEBERT_REGISTRY", "postgresql://x:password-of-the-database@y/z")
    front_ends = application(load_settings(log_level="error"), Layout())._bound_deployment
    replicas = front_ends.init_args[1]._bound_deployment
    assert b"password-of-the-database" in pickle.dumps(replicas.init_args[0])
    assert b"password-of-the-database" not in pickle.dumps(front_ends.init_args[0])
    assert front_ends.init_args[0].log_level == "error"


@pytest.mark.parametrize(
    "settings", [{}, {"registry": "sqlite:////tmp/x.db"}, {"registry": "postgresql://x/y", "front_ends": 2}]
)
def test_settings_for_one_server_alone_are_refused(settings, monkeypatch):
    with pytest.raises(InvalidSettings, match=r"registry|front end|--gpus"):
        application(load_settings(**settings), Layout())
