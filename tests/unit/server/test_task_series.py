"""Metrics of tasks are exact for those that are shown, bounded whatever comes, and never go down."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from observing import answered
from onebert_encoder.answering.results import Prediction
from onebert_server.answering.reading import seen as seen_of
from onebert_server.observed import Seen
from onebert_server.telemetry import counts
from onebert_server.telemetry.counts import MAX_LABELS, OTHER, RANK_EVERY, AnswerCounts
from onebert_server.telemetry.tasks import TaskSeries
from onebert_server.versions.facts import Facts
from onebert_store.file.reference import MAX_ANSWERED
from runtimes import TASKS, classify, get, move, opened, upload

SHOWN = 3
names = st.sampled_from([f"task{number}" for number in range(8)])
answers = st.lists(
    st.builds(
        Seen,
        names,
        st.lists(st.sampled_from("abc"), max_size=2).map(tuple),
        st.none() | st.floats(0, 1),
        st.just(1),
        cut=st.booleans(),
    ),
    max_size=6,
)


class Counted:
    """Counts with a clock of the test."""

    def __init__(self, most=SHOWN):
        self.now = 0.0
        self.counts = AnswerCounts(most, clock=lambda: self.now)
        self.series = TaskSeries(self.counts)
        self.registry = CollectorRegistry()
        self.registry.register(self.series)

    def count(self, answers, seconds=0.1):
        self.counts.count([answered(answers, seconds)])

    def samples(self):
        """Every sample as Prometheus reads it, by name and labels; of one version of each task, without that."""
        families = text_string_to_metric_families(generate_latest(self.registry).decode())
        return {
            (sample.name, *sorted(label for label in sample.labels.items() if label[0] != "version")): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }

    def tasks(self):
        return {dict(labels)["task"] for _, *labels in self.samples()} - {OTHER}


@given(st.lists(st.tuples(answers, st.floats(0, 10))))
def test_counts_are_those_of_a_list_of_all_requests(requests):
    counted = Counted()
    for counted_request in requests:
        counted.count(*counted_request)
    order = dict.fromkeys(seen.task for request, _ in requests for seen in request)
    shown = {task: task if place < SHOWN else OTHER for place, task in enumerate(order)}
    times, scores, cut, labels = Counter(), Counter(), Counter(), Counter()
    for request, _ in requests:
        times.update({shown[seen.task] for seen in request})
        for seen in request:
            labels.update((shown[seen.task], label) for label in seen.labels)
            scores[shown[seen.task]] += seen.score is not None
            cut[shown[seen.task]] += seen.cut
    series = counted.samples()
    assert {task: series["onebert_task_request_seconds_count", ("task", task)] for task in times} == times
    assert {
        (dict(rest)["task"], dict(rest)["label"]): value
        for (name, *rest), value in series.items()
        if name == "onebert_task_labels_total"
    } == labels
    for task in shown.values():
        assert series["onebert_task_top_score_count", ("task", task)] == scores[task]
        assert series["onebert_task_truncated_total", ("task", task)] == cut[task]
        for bound in ("0.5", "0.95"):
            below = sum(
                shown[seen.task] == task and seen.score is not None and seen.score <= float(bound)
                for request, _ in requests
                for seen in request
            )
            assert series["onebert_task_top_score_bucket", ("le", bound), ("task", task)] == below


@given(st.lists(st.tuples(answers, st.booleans()), max_size=60))
def test_no_counter_of_a_task_that_stays_ever_goes_down(requests):
    counted = Counted()
    before, asked = counted.samples(), 0
    for request, later in requests:
        counted.now += RANK_EVERY + 1 if later else 0
        counted.count(request)
        now = counted.samples()
        stays = {key for key in now if key in before and (not later or dict(key[1:])["task"] == OTHER)}
        assert all(now[key] >= before[key] for key in stays)
        # Nothing that was counted somewhere is counted once more elsewhere.
        asked += len({seen.task for seen in request})
        assert sum(value for key, value in now.items() if key[0] == "onebert_task_request_seconds_count") <= asked
        before = now


def test_the_busiest_tasks_are_shown():
    counted = Counted()
    for task, times in (("busy", 50), ("rare", 2), ("steady", 30), ("new", 20)):
        for _ in range(times):
            counted.count([Seen(task)])
    assert counted.tasks() == {"busy", "rare", "steady"}
    other = counted.samples()["onebert_task_request_seconds_count", ("task", OTHER)]
    assert other == 20
    counted.now += RANK_EVERY + 1
    counted.count([Seen("new")])
    assert counted.tasks() == {"busy", "new", "steady"}
    shown = counted.samples()
    assert shown["onebert_task_request_seconds_count", ("task", "new")] == 1
    assert shown["onebert_task_request_seconds_count", ("task", OTHER)] == other
    # About as much traffic takes nobody's place.
    for task in ("rival", "busy", "new", "steady"):
        for _ in range(15):
            counted.count([Seen(task)])
    counted.now += RANK_EVERY + 1
    counted.count([])
    assert counted.tasks() == {"busy", "new", "steady"}


def test_tasks_and_labels_are_bounded(monkeypatch):
    monkeypatch.setattr(counts, "MAX_VERSIONS", 40 * SHOWN)
    counted = Counted()
    for number in range(100 * SHOWN):
        counted.count([Seen(f"once-{number}", (f"label {number}",), 0.5)])
        if number % 10 == 0:
            counted.count([Seen("often", ("yes",), 0.5)])
    counted.now += RANK_EVERY + 1
    counted.count([Seen("often", tuple(f"label {number}" for number in range(500)), 0.5)])
    shown = counted.samples()
    assert "often" in counted.tasks()
    assert len(counted.tasks()) == SHOWN
    labels = [dict(rest)["label"] for (name, *rest) in shown if name == "onebert_task_labels_total"]
    assert max(Counter(dict(rest)["task"] for (name, *rest) in shown if name.endswith("labels_total")).values()) == (
        MAX_LABELS + 1
    )
    assert OTHER in labels


def test_an_answer_names_a_bounded_number_of_labels():
    labels = [f"label {number}" for number in range(4096)]
    facts = Facts("wide", 3, "digest", "base", "multi_label", labels, 64, "cls")
    seen = seen_of(facts, Prediction(labels, [0.75] * 4096, 0, labels=labels))
    assert seen == Seen("wide", (*labels[:MAX_ANSWERED], OTHER), 0.75, 3, text=0)
    assert seen_of(facts, Prediction(labels, [0.75] * 4096, 0, labels=labels[:2])).labels == tuple(labels[:2])


def test_what_aliases_mean_is_shown_of_the_busiest_tasks_first(tmp_path):
    def shares(runtime):
        families = text_string_to_metric_families(get(runtime, "/metrics").text)
        [samples] = [family.samples for family in families if family.name == "onebert_task_alias"]
        return {tuple(map(sample.labels.get, ("task", "alias", "version"))): sample.value for sample in samples}

    with opened(tmp_path, task_metrics=2) as runtime:
        for name, task in (("first", TASKS[0]), ("second", TASKS[0]), ("tone", TASKS[0]), ("tone", TASKS[1])):
            upload(runtime, name, task)
        assert shares(runtime) == {("first", "live", "1"): 1.0, ("second", "live", "1"): 1.0}
        move(runtime, {"split": {"1": 90, "2": 10}})
        classify(runtime)
        assert shares(runtime) == {("tone", "live", "1"): 0.9, ("tone", "live", "2"): 0.1}
