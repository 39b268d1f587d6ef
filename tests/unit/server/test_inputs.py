"""The source of the texts: false alarms and changes by simulation, restarts, and a replica whose texts change."""

import asyncio
from itertools import cycle, repeat

import numpy as np
import pytest

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_server.answering import probing
from onebert_server.engine.probe import probe
from onebert_server.watching import inputs
from onebert_server.watching.alarms import MONTH, Budget
from onebert_server.watching.inputs import HOURS, LEAST_SECONDS, LEAST_TEXTS, Inputs, hours_of, source_p
from onebert_server.watching.windows import PART, WINDOW
from runtimes import client, get, opened
from servers import Task, store, wait_until

OUTPUTS = 16
TWEETS = ["thanks !", "so late again ?", "no way", "they like it !", "how good is this", "my screen broken help"]
NEWS = [
    f"the people of the water have been told about many long days , but their {word} was not the first of these"
    for word in ("way", "number", "place", "order", "call", "use")
]


DAY = 86400.0


def sums(texts):
    return texts.T @ texts


def texts_of(rng, count, sources=(0.5, 0.3, 0.2), times=None, rhythm=0.0):
    """Texts as they are compared: vectors of sources with means, spreads and heavy tails of their own, in these shares.

    With a `rhythm` four outputs move through the day by so many standard deviations up and down.
    """
    own = np.random.default_rng(1)
    means, maps = own.normal(0, 2, (3, OUTPUTS)), own.normal(0, 1, (3, OUTPUTS, OUTPUTS))
    of = rng.choice(3, count, p=sources)
    times = rng.uniform(0, DAY, count) if times is None else times
    vectors = rng.standard_t(5, (count, OUTPUTS))
    for source in range(3):
        vectors[of == source] = means[source] + vectors[of == source] @ maps[source]
    vectors[:, :4] += rhythm * SPREAD * np.sin(2 * np.pi * times / DAY)[:, None]
    return np.column_stack([hours_of(times), vectors])


# Of one output over all sources.
SPREAD = (5 / 3 * OUTPUTS) ** 0.5
# Texts of a day with a window in each hour.
A_DAY = HOURS * WINDOW


def test_hours_share_a_time_between_the_two_that_are_next():
    found = hours_of(np.array([0.0, 1.25 * 3600, 23.5 * 3600, 9 * DAY]))
    assert found.shape == (4, HOURS)
    assert found[0, 0] == found[3, 0] == 1
    assert list(found[1, 1:3]) == [0.75, 0.25]
    assert found[2, 23] == found[2, 0] == 0.5
    assert np.allclose(found.sum(axis=1), 1)


def hour(rng, rhythm, sources=(0.5, 0.3, 0.2), start=None):
    """The sum over a window of an hour that begins at a time of the day, without one at any."""
    start = rng.uniform(0, DAY) if start is None else start
    return texts_of(rng, WINDOW, sources, start + rng.uniform(0, 3600, WINDOW), rhythm).sum(axis=0)


@pytest.mark.parametrize("rhythm", [0.0, 1.0])
def test_without_a_change_p_values_are_those_of_chance_at_every_hour(rhythm):
    rng = np.random.default_rng(2)
    found = [
        source_p(sums(texts_of(rng, size, rhythm=rhythm)), hour(rng, rhythm))
        for size in 400 * [LEAST_TEXTS] + 100 * [A_DAY]
    ]
    for level in (0.1, 0.01, 0.005):
        # Three standard errors of the simulation.
        assert np.mean(np.array(found) < level) < level + 3 * (level / len(found)) ** 0.5


@pytest.mark.parametrize("rhythm", [0.0, 1.0])
def test_a_source_that_grows_is_heard_in_one_window(rhythm):
    rng = np.random.default_rng(3)
    days = (sums(texts_of(rng, A_DAY, rhythm=rhythm)) for _ in range(50))
    heard = [source_p(day, hour(rng, rhythm, (0.2, 0.2, 0.6))) < 1e-5 for day in days]
    assert np.mean(heard) > 0.95


def test_an_hour_that_the_reference_has_not_seen_is_not_compared():
    rng = np.random.default_rng(8)
    by_day = sums(texts_of(rng, LEAST_TEXTS, times=rng.uniform(8 * 3600, 20 * 3600, LEAST_TEXTS), rhythm=1.0))
    assert all(source_p(by_day, hour(rng, 1.0, start=2 * 3600)) > 0.01 for _ in range(100))


class Told:
    """Inputs whose calls run at once, with a clock of the test, and a level of 0.005 or an allowance."""

    def __init__(self, path, outputs=OUTPUTS, a_month=None):
        self.now, self.changes = 0.0, []
        level = Budget(a_month, lambda: self.now).spend if a_month else lambda: 0.005
        self.inputs = Inputs(path, outputs, lambda call: call(), level, self.changes.append, lambda: self.now)

    def add(self, texts, times=None):
        for time, text in zip(repeat(self.now) if times is None else times, texts, strict=False):
            self.now = time
            self.inputs.add(text[HOURS:])


@pytest.mark.parametrize("rhythm", [0.0, 1.0])
def test_months_without_a_change_raise_no_more_alarms_than_are_allowed(tmp_path, rhythm):
    rng, alarms, months = np.random.default_rng(9), 0, 4
    for month in range(months):
        told = Told(tmp_path / str(month), a_month=1.0)
        times = np.sort(rng.uniform(0, MONTH, 30 * LEAST_TEXTS))
        told.add(texts_of(rng, len(times), times=times, rhythm=rhythm), times)
        assert told.inputs.p is not None
        alarms += told.changes.count("on")
    assert alarms <= months


def test_the_reference_takes_a_day_and_outlives_a_restart(tmp_path):
    rng, path = np.random.default_rng(4), tmp_path / "inputs.npz"
    told = Told(path)
    told.add(texts_of(rng, LEAST_TEXTS))
    assert told.inputs.collecting, "the hours of a day differ"
    again = Told(path)
    again.now += LEAST_SECONDS
    assert (again.inputs.texts, again.inputs.collecting) == (LEAST_TEXTS, False)
    again.add(texts_of(rng, WINDOW))
    assert again.inputs.p == source_p(again.inputs._sums, sum(again.inputs._window))
    assert again.inputs.alarm_since is None
    again.add(texts_of(rng, WINDOW, (0.1, 0.1, 0.8)))
    assert again.changes == ["on"]
    again.add(texts_of(rng, WINDOW))
    assert (again.changes, again.inputs.alarm_since) == (["on", "off"], None)
    assert again.inputs.texts == LEAST_TEXTS, "what is compared does not change the reference"


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_a_damaged_file_is_a_reference_that_begins_anew(tmp_path, content):
    path = tmp_path / "inputs.npz"
    path.write_bytes(content)
    told = Told(path)
    told.add(texts_of(np.random.default_rng(5), PART))
    assert told.inputs.texts == PART
    assert Told(path).inputs.texts == PART


def test_a_file_of_another_probe_is_no_reference(tmp_path):
    path, rng = tmp_path / "inputs.npz", np.random.default_rng(10)
    wide = Told(path, outputs=2 * OUTPUTS)
    wide.add(np.tile(texts_of(rng, LEAST_TEXTS), 2)[:, : 2 * OUTPUTS + HOURS])
    assert wide.inputs.texts == LEAST_TEXTS
    told = Told(path)
    assert told.inputs.texts == 0
    told.add(texts_of(rng, PART))
    assert told.inputs.texts == Told(path).inputs.texts == PART


def test_a_base_that_varies_in_few_directions_is_compared_in_these():
    rng = np.random.default_rng(6)
    texts = texts_of(rng, WINDOW + LEAST_TEXTS)
    texts[:, HOURS:] = rng.normal(0, 1, (len(texts), 2)) @ rng.normal(0, 1, (2, OUTPUTS))
    p = source_p(sums(texts[WINDOW:]), texts[:WINDOW].sum(axis=0))
    assert 0.001 < p <= 1


def test_the_probe_is_the_same_at_every_start():
    base = load_base(tiny_base())
    one, other = probe(base), probe(base)
    assert np.array_equal(one.weight, other.weight)
    assert one.weight.shape == (16, 32)


def test_texts_of_another_source_raise_one_alarm_for_all_tasks(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(probing, "RATE", 1e9)
    monkeypatch.setattr(inputs, "LEAST_SECONDS", 0.0)
    store(tmp_path, tone=Task(seed=1), topic=Task(seed=2))
    rng = np.random.default_rng(7)

    async def asked(texts, runtime):
        async with client(runtime) as web:
            for task, text in zip(cycle(("tone", "topic")), texts, strict=False):
                sent = await web.post(f"/v1/tasks/{task}/classify", json={"inputs": text})
                assert sent.status_code == 200

    def mixed(texts, count):
        return [f"{rng.choice(texts)} {rng.choice(texts)}" for _ in range(count)]

    def state(runtime):
        [one] = get(runtime, "/v1/fleet").json()["inputs"]
        return one

    with opened(tmp_path) as runtime:
        assert state(runtime).items() >= {"state": "collecting", "texts": 0, "alarm_since": None, "p": None}.items()
        resident = runtime.hosts[0].bank.num_resident
        asyncio.run(asked(mixed(TWEETS, LEAST_TEXTS), runtime))
        wait_until(lambda: state(runtime)["texts"] == LEAST_TEXTS)
        assert (state(runtime)["state"], runtime.hosts[0].bank.num_resident) == ("watched", resident)
    with opened(tmp_path) as runtime:
        asyncio.run(asked(mixed(TWEETS, WINDOW), runtime))
        wait_until(lambda: state(runtime)["p"] is not None)
        assert state(runtime)["alarm_since"] is None
        asyncio.run(asked(mixed(NEWS, WINDOW), runtime))
        wait_until(lambda: state(runtime)["alarm_since"] is not None)
        assert "onebert_inputs_alarm 1.0" in get(runtime, "/metrics").text.splitlines()
    assert len([one for one in caplog.messages if "no longer like those of the reference" in one]) == 1
    assert not any(text in one for one in caplog.messages for text in (*TWEETS, *NEWS))
