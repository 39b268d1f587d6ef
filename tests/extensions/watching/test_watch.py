"""Counting and judging without HTTP: windows against counting by hand, memory, names, versions that go away."""

import tracemalloc
from itertools import count
from threading import Event
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_encoder.answering.asked import Asked, AskedWindow
from onebert_encoder.answering.results import Prediction
from onebert_server.answering.reading.seen import seen
from onebert_server.extensions.watching.watch import Watch
from onebert_server.extensions.watching.watched import Watched
from onebert_server.extensions.watching.windows import PART, WINDOW, Window
from onebert_server.observed import ABSTAINED, Seen
from onebert_server.telemetry.answer_counts import AnswerCounts, RequestAnswers
from onebert_server.versions.facts import Facts
from onebert_store.errors import TaskNotFound
from onebert_store.file.decision import Decision
from onebert_store.file.manifest import FORMAT, parse_manifest
from servers import wait_until
from tiny_delta import manifest_dict

EDGES = [0.5, 0.6, 0.9]


def manifest_of(labels=2, rows=200, right=True):
    """Labels are equally frequent, and every answer is right."""
    each, bins = rows // labels, [rows // 4] * 4
    tables = {
        "answered": [[each * (one == other) for other in range(labels)] + [0] for one in range(labels)],
        "scores": [[count // labels for count in bins] for _ in range(labels)],
    }
    reference = {"split": "validation", "rows": rows, "labels": [each] * labels, "edges": EDGES, "scores": bins}
    reference |= {"confidence": 0.7, "right": tables if right else None}
    names = [f"label {number}" for number in range(labels)]
    return parse_manifest(manifest_dict(format=FORMAT, labels=names, reference=reference))


def plain(manifest, **changes):
    """The same version without a reference."""
    return parse_manifest(manifest.model_dump() | {"format": 1, "reference": None} | changes)


answers = st.tuples(
    st.lists(st.sampled_from(["label 0", "label 1", ABSTAINED, "(other)"]), max_size=3, unique=True),
    st.none() | st.sampled_from([0.0, 0.5, 0.55, 0.6, 0.89, 0.95, 1.0]),
)


@given(st.lists(answers, min_size=1, max_size=40), st.integers(1, 9 * PART), st.sampled_from([1, 7, 64, 3 * PART]))
def test_a_window_has_the_counts_of_its_last_500_answers_by_hand(some, count, turn):
    manifest = manifest_of()
    window = Window(manifest.labels, manifest.reference)
    stream = [some[number * number % len(some)] for number in range(count)]
    full = []
    for start in range(0, count, turn):
        full += window.add([Seen("tone", tuple(labels), score) for labels, score in stream[start : start + turn]])
    assert len(full) == count // PART
    assert window.answers == count
    if (live := window.last) is None:
        return
    last = stream[: count // PART * PART][-WINDOW:]
    names = ["label 0", "label 1", ABSTAINED]
    assert live.labels.tolist() == [sum(name in labels for labels, _ in last) for name in names]
    scores = [score for _, score in last if score is not None]
    between = zip([-1.0, *EDGES], [*EDGES, 2.0], strict=True)
    assert live.scores.tolist() == [sum(low < score <= high for score in scores) for low, high in between]
    assert (live.answers, live.confidence) == (len(last), pytest.approx(sum(scores)))


@pytest.mark.parametrize(
    ("labels", "right", "most"), [(4, True, 8_000), (32, True, 28_000), (512, False, 105_000), (4, None, 15_000)]
)
def test_a_watched_version_takes_little_memory(labels, right, most):
    """The last one learns its reference, from scores that it holds meanwhile."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        manifest = manifest_of(labels, rows=2**14, right=right)
        watched = Watched.from_manifest(manifest if right is not None else plain(manifest))
        for number in range(2 * WINDOW - 1):
            watched.count([Seen("tone", (f"label {number % labels}",), number / 1000, 1, next(NEW))])
        del manifest
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < most
    assert watched.answers == 2 * WINDOW - 1


FACTS = Facts("tone", 1, "digest", "base", "single_label", ["a", "b"], 64, "mean")


@pytest.mark.parametrize(
    ("asked", "decision", "counted"),
    [
        (Asked(top_k=1, energy=True), None, True),
        (Asked(activation="softmax"), None, True),
        (Asked(activation="sigmoid"), None, False),
        (Asked(threshold=0.5), None, False),
        (Asked(window=AskedWindow()), None, False),
        (Asked(whole=True), None, False),
        (Asked(only_scores=True), None, True),
        (Asked(only_scores=True), Decision(thresholds={"a": 0.5}), False),
    ],
)
def test_answers_by_rules_of_a_request_are_not_compared(asked, decision, counted):
    facts = Facts(**vars(FACTS) | {"decision": decision})
    prediction = Prediction(["a", "b"], [0.7, 0.3], 0)
    assert (seen(facts, prediction, asked, "a text").text is not None) == counted
    assert seen(Facts(**vars(facts) | {"task_type": "regression"}), prediction, asked, "a text").text is None


def test_equal_texts_have_one_hash_in_every_process_and_the_halves_of_a_pair_have_places():
    of = {text: seen(FACTS, Prediction(["a", "b"], [0.7, 0.3], 0), text=text).text for text in TEXTS}
    assert of["a text"] == 0xA9642A83
    assert len(set(of.values())) == len(TEXTS)


class Versions:
    """The versions of a test: their manifests, and whether an alias means them."""

    def __init__(self):
        self.manifests, self.unread = {("tone", 1): manifest_of()}, Event()
        self.aliased = {("tone", 1), ("voice", 1)}

    def find(self, task, version):
        if self.unread.is_set() or (task, version) not in self.manifests:
            raise TaskNotFound("it is not there")
        return self.manifests[task, version]

    def is_aliased(self, task, version):
        return (task, version) in self.aliased


@pytest.fixture
def versions():
    return Versions()


@pytest.fixture
def changed():
    return []


@pytest.fixture
def counts():
    return AnswerCounts()


@pytest.fixture
def watch(counts, versions, changed):
    watch = Watch(counts, 1.0, versions, versions, 10, lambda *change: changed.append(change))
    counts.listeners.append(watch.count)
    watch.start()
    yield watch
    watch.close()


TEXTS = ["a text", "another", ("a", "text"), ("text", "a")]
NEW = (crc32(str(number).encode()) for number in count())


def tell(counts, label, count=WINDOW, task="tone"):
    """Answers to texts that were never asked before."""
    for number in range(count):
        answer = Seen(task, (label,), (0.4, 0.55, 0.7, 0.95)[number % 4], 1, next(NEW))
        counts.count([RequestAnswers([answer], 0.1)])


def begun(counts, watch, task="tone"):
    tell(counts, "label 0", 1, task)
    wait_until(lambda: watch.get(task, 1) is not None)


def test_an_alarm_ends_with_the_last_alias_of_its_version(counts, watch, versions, changed, monkeypatch):
    begun(counts, watch)
    tell(counts, "label 0")
    wait_until(lambda: changed)
    versions.aliased.clear()
    monkeypatch.setattr("onebert_server.extensions.watching.watch.CHECK_EVERY", 0.0)
    tell(counts, "label 0", PART)
    wait_until(lambda: changed[1:])
    assert changed[1:] == [("off", "tone", 1, {})]
    assert not watch.alarms()


def test_an_alarm_ends_when_others_are_watched_in_place_of_its_version(counts, watch, versions, changed, monkeypatch):
    begun(counts, watch)
    tell(counts, "label 0")
    wait_until(lambda: changed)
    monkeypatch.setattr("onebert_server.telemetry.answer_counts.MAX_VERSIONS", 1)
    versions.manifests["other", 1] = manifest_of()
    begun(counts, watch, "other")
    wait_until(lambda: changed[1:])
    assert changed[1:] == [("off", "tone", 1, {})]
    assert watch.get("tone", 1) is None


def test_a_version_without_an_alias_raises_no_alarm(counts, watch, versions, changed):
    versions.aliased.clear()
    begun(counts, watch)
    tell(counts, "label 0")
    versions.manifests["other", 1] = manifest_of()
    begun(counts, watch, "other")  # the thread has come to it behind the windows above
    assert (watch.alarms(), changed, watch.get("tone", 1).judged) == ([], [], None)


def test_under_200_answers_nothing_is_judged(counts, watch, versions):
    begun(counts, watch)
    tell(counts, "label 0", 2 * PART - 1)
    versions.manifests["other", 1] = manifest_of()
    begun(counts, watch, "other")
    assert watch.get("tone", 1).judged is None
    tell(counts, "label 0", 1)
    wait_until(lambda: watch.get("tone", 1).judged is not None)
    assert watch.get("tone", 1).judged.live.answers == 2 * PART


def test_while_no_manifest_can_be_read_the_next_answer_asks_again(counts, watch, versions):
    versions.unread.set()
    tell(counts, "label 0")
    assert watch.get("tone", 1) is None
    versions.unread.clear()
    wait_until(lambda: tell(counts, "label 0", 1) or watch.get("tone", 1) is not None)


@pytest.fixture
def few_labels(monkeypatch):
    monkeypatch.setattr("onebert_server.extensions.watching.watch.MAX_LABELS", 8)


def test_labels_of_all_versions_are_bounded_too(few_labels, counts, watch, versions):
    versions.manifests |= {(f"task {number}", 1): manifest_of(4, rows=400) for number in range(3)}
    for number in range(3):
        begun(counts, watch, f"task {number}")
    assert [watch.get(f"task {number}", 1) is not None for number in range(3)] == [False, True, True]
