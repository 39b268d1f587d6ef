"""The source of the texts: false alarms and changes by simulation, restarts, and a replica whose texts change."""

import asyncio
from itertools import cycle

import numpy as np
import pytest

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_server.answering import probing
from onebert_server.engine.probe import probe
from onebert_server.watching import inputs
from onebert_server.watching.inputs import LEAST_SECONDS, LEAST_TEXTS, Inputs, source_p
from onebert_server.watching.windows import PART, WINDOW
from runtimes import client, get, opened
from servers import Task, store, wait_until

OUTPUTS = 16
TWEETS = ["thanks !", "so late again ?", "no way", "they like it !", "how good is this", "my screen broken help"]
NEWS = [
    f"the people of the water have been told about many long days , but their {word} was not the first of these"
    for word in ("way", "number", "place", "order", "call", "use")
]


def sums(vectors):
    ones = np.column_stack([np.ones(len(vectors)), vectors])
    return ones.T @ ones


def texts_of(rng, count, sources=(0.5, 0.3, 0.2)):
    """Vectors of sources with means, spreads and heavy tails of their own, in these shares."""
    own = np.random.default_rng(1)
    means, maps = own.normal(0, 2, (3, OUTPUTS)), own.normal(0, 1, (3, OUTPUTS, OUTPUTS))
    of = rng.choice(3, count, p=sources)
    drawn = rng.standard_t(5, (count, OUTPUTS))
    return means[of] + np.einsum("ni,nij->nj", drawn, maps[of])


def test_without_a_change_p_values_are_those_of_chance():
    rng = np.random.default_rng(2)
    found = [source_p(sums(texts_of(rng, LEAST_TEXTS)), texts_of(rng, WINDOW).sum(axis=0), WINDOW) for _ in range(2000)]
    for level in (0.1, 0.01, 0.005):
        # Three standard errors of the simulation.
        assert np.mean(np.array(found) < level) < level + 3 * (level / 2000) ** 0.5


def test_a_source_that_grows_is_heard_in_one_window():
    rng = np.random.default_rng(3)
    heard = [
        source_p(sums(texts_of(rng, LEAST_TEXTS)), texts_of(rng, WINDOW, (0.2, 0.2, 0.6)).sum(axis=0), WINDOW) < 1e-5
        for _ in range(100)
    ]
    assert np.mean(heard) > 0.95


class Told:
    """Inputs whose calls run at once, with a clock and a level of the test."""

    def __init__(self, path, level=0.005):
        self.now, self.changes = 1e9, []
        self.inputs = Inputs(path, lambda call: call(), lambda: level, self.changes.append, lambda: self.now)

    def add(self, vectors):
        for vector in vectors:
            self.inputs.add(vector)


def test_the_reference_takes_a_day_and_outlives_a_restart(tmp_path):
    rng, path = np.random.default_rng(4), tmp_path / "inputs.npz"
    told = Told(path)
    told.add(texts_of(rng, LEAST_TEXTS))
    assert told.inputs.collecting, "the hours of a day differ"
    again = Told(path)
    again.now += LEAST_SECONDS
    assert (again.inputs.texts, again.inputs.collecting) == (LEAST_TEXTS, False)
    again.add(texts_of(rng, WINDOW))
    assert again.inputs.p == source_p(again.inputs._sums, sum(again.inputs._window), WINDOW)
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


def test_a_base_that_varies_in_few_directions_is_compared_in_these():
    rng = np.random.default_rng(6)
    flat = np.column_stack([rng.normal(0, 1, (WINDOW + LEAST_TEXTS, 2)) @ rng.normal(0, 1, (2, OUTPUTS))])
    p = source_p(sums(flat[WINDOW:]), flat[:WINDOW].sum(axis=0), WINDOW)
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
