"""Watching without HTTP: windows by hand, memory, what the store keeps, versions that go away."""

from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from threading import Event
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observing import answered
from onebert_encoder.answering.asked import Asked, AskedWindow
from onebert_encoder.answering.results import Prediction
from onebert_server.answering.reading import seen
from onebert_server.extensions.watching.kept import KeptAlarm, WatchDocuments
from onebert_server.extensions.watching.watch import Watch
from onebert_server.extensions.watching.watched import Watched
from onebert_server.extensions.watching.windows import live_of
from onebert_server.observed import ABSTAINED, Seen
from onebert_server.telemetry.counts import AnswerCounts
from onebert_server.versions.facts import Facts
from onebert_store.errors import TaskNotFound, VersionNotFound
from onebert_store.file.decision import Decision, Window
from onebert_store.file.manifest import FORMAT, parse_manifest
from onebert_store.file.reference import PART, WINDOW
from onebert_store.registry.registry import Registry
from servers import wait_until
from tiny_delta import make_delta, manifest_dict

EDGES = [0.5, 0.6, 0.9]
NAMES = ["label 0", "label 1", ABSTAINED]


def reference_of(labels=2, rows=200):
    """Labels are equally frequent."""
    counts = {"labels": [rows // labels] * labels, "edges": EDGES, "scores": [rows // 4] * 4}
    return {"split": "validation", "rows": rows, "confidence": 0.7} | counts


def manifest_of(labels=2, rows=200):
    names = [f"label {number}" for number in range(labels)]
    return parse_manifest(manifest_dict(format=FORMAT, labels=names, reference=reference_of(labels, rows)))


answers = st.tuples(
    st.lists(st.sampled_from([*NAMES, "(other)"]), max_size=3, unique=True),
    st.none() | st.sampled_from([0.0, 0.5, 0.55, 0.6, 0.89, 0.95, 1.0]),
)


@given(st.lists(answers, min_size=1, max_size=40), st.integers(1, 9 * PART), st.sampled_from([1, 7, 64, 3 * PART]))
def test_a_window_has_the_counts_of_its_last_500_answers_by_hand(some, count, turn):
    manifest = manifest_of()
    watched = Watched(manifest.labels, manifest.reference)
    stream = [some[number * number % len(some)] for number in range(count)]
    parts = []
    for start in range(0, count, turn):
        turned = enumerate(stream[start : start + turn], start + 1)
        parts += watched.count([Seen("tone", tuple(labels), score, 1, at) for at, (labels, score) in turned])
    assert (len(parts), watched.answers) == (count // PART, count)
    for part in parts:
        watched.judge(part, 0.0)
    if watched.judged is None:
        return
    live, last = watched.judged.live, stream[: count // PART * PART][-WINDOW:]
    assert live.labels.tolist() == [sum(name in labels for labels, _ in last) for name in NAMES]
    scores = [score for _, score in last if score is not None]
    between = zip([-1.0, *EDGES], [*EDGES, 2.0], strict=True)
    assert live.scores.tolist() == [sum(low < score <= high for score in scores) for low, high in between]
    assert (live.answers, live.confidence) == (len(last), pytest.approx(sum(scores)))


def test_a_text_asked_again_and_again_counts_once():
    watched = Watched(NAMES[:2], None)
    watched.count([Seen("tone", ("label 0",), 0.9, 1, next(NEW)) for _ in range(400)])
    for _ in range(600):
        watched.count([Seen("tone", ("label 1",), 0.99, 1, 7)])
    assert (watched.answers, watched.repeats) == (401, 599)


LONG = Decision(window=Window(tokens=32, overlap=8, reduction="max"))
FACTS = Facts("tone", 1, "digest", "base", "single_label", ["a", "b"], 64, "mean")


@pytest.mark.parametrize(
    ("asked", "decision", "windows", "counted"),
    [
        (Asked(top_k=1, energy=True), None, None, True),
        (Asked(activation="softmax"), None, None, True),
        (Asked(activation="sigmoid"), None, None, False),
        (Asked(threshold=0.5), None, None, False),
        (Asked(threshold=0.5), Decision(thresholds={"a": 0.5, "b": 0.5}), None, True),
        (Asked(threshold=0.5), Decision(thresholds={"a": 0.5}), None, False),
        (Asked(window=AskedWindow()), None, 1, True),
        (Asked(window=AskedWindow()), None, 2, False),
        (Asked(window=AskedWindow()), LONG, 2, False),
        (Asked(whole=True), None, None, True),
        (Asked(whole=True), None, 2, False),
        (Asked(whole=True), LONG, 2, True),
        (Asked(top_k=1), LONG, 2, True),
        (Asked(only_scores=True), None, None, True),
        (Asked(only_scores=True), Decision(thresholds={"a": 0.5}), None, False),
    ],
)
def test_answers_by_other_rules_than_the_versions_are_not_compared(asked, decision, windows, counted):
    facts = Facts(**vars(FACTS) | {"decision": decision})
    prediction = Prediction(["a", "b"], [0.7, 0.3], 0)
    assert (seen(facts, prediction, asked, "a text", windows=windows).text is not None) == counted
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
def registry(tmp_path):
    """Has the versions, whose rows the store keeps."""
    with Registry.open(tmp_path / "data") as registry:
        for task in ("tone", "other"):
            registry.add(task, make_delta(1))
        yield registry


@contextmanager
def started(counts, registry, versions, changed):
    documents = WatchDocuments(registry.documents)
    watch = Watch(counts, 1.0, documents, versions, versions, 10, lambda *change: changed.append(change))
    counts.listeners.append(watch.count)
    watch.start()
    try:
        yield watch
    finally:
        watch.close()
        counts.listeners.remove(watch.count)


@pytest.fixture
def watch(counts, registry, versions, changed):
    with started(counts, registry, versions, changed) as watch:
        yield watch


TEXTS = ["a text", "another", ("a", "text"), ("text", "a")]
NEW = (crc32(str(number).encode()) for number in count())


def tell(counts, label, count=WINDOW, task="tone"):
    """Answers to texts that were never asked before."""
    for number in range(count):
        answer = Seen(task, (label,), (0.4, 0.55, 0.7, 0.95)[number % 4], 1, next(NEW))
        counts.count([answered([answer])])


def tell_both(counts, count):
    """As the reference has them, in labels and scores."""
    for _ in range(count // 8 + 1):
        for label in NAMES[:2]:
            tell(counts, label, 4)


def begun(counts, watch, task="tone"):
    tell(counts, "label 0", 1, task)
    wait_until(lambda: watch.get(task, 1) is not None)


def test_an_alarm_says_what_has_moved_and_ends_with_it(counts, watch, changed):
    begun(counts, watch)
    tell(counts, "label 0")
    wait_until(lambda: changed)
    assert changed == [
        (
            "on",
            "tone",
            1,
            {
                "words": "other labels than its reference",
                "labels": [
                    {"label": "label 0", "reference": 0.5, "live": 1.0},
                    {"label": "label 1", "reference": 0.5, "live": 0.0},
                    {"label": ABSTAINED, "reference": 0.0, "live": 0.0},
                ],
                "scores": {"reference": 0.7, "live": pytest.approx(0.65)},
                "repeats": 0,
            },
        )
    ]
    assert watch.alarms() == [("tone", 1)]
    tell_both(counts, WINDOW)
    wait_until(lambda: changed[1:])
    assert (changed[1:], watch.alarms()) == ([("off", "tone", 1, {})], [])


def test_a_restart_forgets_neither_an_alarm_nor_its_end(counts, registry, versions, changed):
    with started(counts, registry, versions, changed) as watch:
        begun(counts, watch)
        tell(counts, "label 0")
        wait_until(lambda: changed)
    before = watch.get("tone", 1)
    counts = AnswerCounts()
    with started(counts, registry, versions, changed) as watch:
        wait_until(lambda: watch.alarms() == [("tone", 1)])
        after = watch.get("tone", 1)
        assert after.alarm_since == before.alarm_since
        assert after.judged.p < 1e-6
        assert len(changed) == 1
        tell_both(counts, PART)
        wait_until(lambda: changed[1:])
    counts, versions.manifests["other", 1] = AnswerCounts(), manifest_of()
    with started(counts, registry, versions, changed) as watch:
        begun(counts, watch, "other")
        assert (watch.alarms(), len(changed)) == ([], 2)


@pytest.mark.parametrize("split", [None, "folds"])
def test_replicas_learn_one_reference_that_a_restart_does_not_forget(split, registry, versions, changed):
    """Earlier files have references of folds, of other, less sure models, which are not used."""
    reference = None if split is None else reference_of() | {"split": split}
    given = {"format": FORMAT if split else 1, "reference": reference}
    versions.manifests["tone", 1] = parse_manifest(manifest_of().model_dump() | given)
    counts = AnswerCounts(), AnswerCounts()
    with started(counts[0], registry, versions, changed) as a, started(counts[1], registry, versions, changed) as b:
        for count, watch in zip(counts, (a, b), strict=True):
            begun(count, watch)
        tell(counts[0], "label 0", 6 * PART)
        wait_until(lambda: a.get("tone", 1).window == 6 * PART)
        tell(counts[1], "label 1", 4 * PART)
        wait_until(lambda: not b.get("tone", 1).learns)
    with started(AnswerCounts(), registry, versions, changed) as watch:
        reference = watch.read("tone", 1).reference
    assert (reference.rows, reference.labels, reference.split) == (1000, [600, 400], "answers")
    assert (sum(reference.scores), reference.confidence) == (1000, pytest.approx(0.65))


def test_what_is_kept_of_a_version_goes_with_it(registry):
    documents = WatchDocuments(registry.documents)
    registry.add("tone", make_delta(2))
    for number in (1, 2):
        documents.set_alarm(("tone", number), KeptAlarm.of(datetime.now(UTC), live_of(manifest_of().reference, 4)))
    assert documents.alarms() == [("tone", 1), ("tone", 2)]
    registry.delete_version("tone", 2)
    assert documents.alarms() == [("tone", 1)]
    with pytest.raises(VersionNotFound):
        documents.set_alarm(("tone", 2), None)
    documents.set_alarm(("tone", 1), None)
    assert documents.alarms() == []


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


def test_a_version_without_an_alias_raises_no_alarm(counts, watch, versions, changed):
    versions.aliased.clear()
    begun(counts, watch)
    tell(counts, "label 0")
    versions.manifests["other", 1] = manifest_of()
    begun(counts, watch, "other")  # the thread has come to it behind the windows above
    assert (watch.alarms(), changed, watch.get("tone", 1).judged) == ([], [], None)


def test_labels_of_all_versions_are_bounded_too(monkeypatch, counts, watch, versions):
    monkeypatch.setattr("onebert_server.telemetry.counts.MAX_BYTES", 35_000)
    versions.manifests |= {(f"task {number}", 1): manifest_of(4, rows=400) for number in range(3)}
    for number in range(3):
        begun(counts, watch, f"task {number}")
    assert [watch.get(f"task {number}", 1) is not None for number in range(3)] == [False, True, True]
