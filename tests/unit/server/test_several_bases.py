"""A replica with two bases: uploads, answers, memory, a restart and what it says of itself span them."""

import asyncio

import numpy as np
import pytest

from bases import tiny_base, wide_base
from onebert_encoder.answering.asked import Asked
from onebert_server.answering.gateway import Wanted
from onebert_server.engine.banks.bank import Bank
from onebert_server.hosts import load_hosts, load_only_host
from onebert_server.settings import load_settings
from onebert_server.versions.version import State
from onebert_store.errors import InvalidSettings
from runtimes import WORK, ask, get, opened, upload
from servers import Task, assert_answers, spec, store

TEXT = "the screen was broken"
BOTH = f"{tiny_base()},{wide_base()}"
PATHS = {"narrow": tiny_base(), "wide": wide_base()}


def task(name, kind="lora", labels=3, seed=1):
    return Task(kind, labels=labels, seed=seed, folder=PATHS[name])


def scores(runtime, *names):
    """What one request about all of them is answered."""
    items = [{"task": name, "text": TEXT} for name in names]
    answer = ask(runtime, "POST", "/v1/classify", json={"items": items})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_two_bases_answer_in_one_request(tmp_path):
    tasks = {name: task(name).with_golden() for name in PATHS}
    with opened(tmp_path, base=BOTH) as runtime:
        for name, stored in tasks.items():
            upload(runtime, name, stored)
        before = scores(runtime, "wide", "narrow", "wide")
        for name, result in zip(("wide", "narrow", "wide"), before, strict=True):
            assert_answers(result, tasks[name].scores(TEXT))
        every = ask(runtime, "POST", "/v1/fanout", json={"text": TEXT, "tasks": ["*"]}).json()["results"]
        assert [result["scores"] for result in every] == [before[1]["scores"], before[0]["scores"]]
    with opened(tmp_path, base=f"{wide_base()},{tiny_base()}") as runtime:
        assert {runtime.directory.version(name, 1).state for name in PATHS} == {State.RESIDENT}
        assert scores(runtime, "wide", "narrow", "wide") == before, "the same bits"
    for name, path in PATHS.items():
        with opened(tmp_path, base=str(path)) as runtime:
            assert scores(runtime, name) == before[name == "narrow" :][:1], "the same bits as with its base alone"
            [other] = PATHS.keys() - {name}
            refused = ask(runtime, "POST", "/v1/classify", json={"items": [{"task": other, "text": TEXT}]})
            assert (refused.status_code, refused.json()["code"]) == (503, "version-unavailable")
            assert "the base here is" in refused.json()["detail"]


def test_versions_of_every_base_share_the_memory(tmp_path):
    names = [f"{name}{number}" for number in range(6) for name in PATHS]
    tasks = {name: task(name.rstrip("0123456789"), "everything", labels=900, seed=at) for at, name in enumerate(names)}
    store(tmp_path, **tasks)
    with opened(tmp_path, base=BOTH, bank_bytes=2**20) as runtime:
        bound = runtime.hosts[0].bank.bound
        for name in names:
            wanted = Wanted([f"{name}@1"], asked=Asked(activation="none"))
            [answer] = asyncio.run(runtime.answerer.answer(WORK, wanted, [TEXT], lambda _, answered: answered.read()))
            np.testing.assert_allclose(answer.answer.scores, tasks[name].logits(TEXT), atol=1e-4)
            assert bound.total <= bound.most == 2**20
        resident = [name for name in names if runtime.directory.version(name, 1).state is State.RESIDENT]
        assert resident == names[-len(resident) :]
        assert 2 < len(resident) < len(names)
        assert sum(host.bank.num_bytes for host in runtime.hosts) == bound.total
        # Both were evicted before, and come back for one request.
        for name, answer in zip(names[:2], scores(runtime, *(f"{name}@1" for name in names[:2])), strict=True):
            assert_answers(answer, tasks[name].scores(TEXT))
        rows = runtime.metrics.registry.get_sample_value("onebert_bank_rows")
        assert rows == sum(version.state is State.RESIDENT for version in runtime.directory.versions())


def test_full_tables_make_room_among_their_own_versions(tmp_path, monkeypatch):
    """As on a GPU, where each bank has its part of the memory from the start: here four rows, one for the bare base."""
    monkeypatch.setattr(Bank, "_capacity", lambda *_: 4)
    names = ["narrow0", "narrow1", "wide0", "wide1", "wide2", "wide3"]
    store(tmp_path, **{name: task(name[:-1], seed=at) for at, name in enumerate(names)})
    with opened(tmp_path, base=BOTH) as runtime:
        for name in names:
            scores(runtime, f"{name}@1")
        evicted = [name for name in names if runtime.directory.version(name, 1).state is not State.RESIDENT]
        assert evicted == ["wide0"], "and no version of the other base, which was used longer ago"


def test_what_a_server_says_of_its_bases(tmp_path):
    store(tmp_path, **{name: task(name, "layernorm") for name in PATHS})
    with opened(tmp_path, base=str(tiny_base())) as runtime:
        alone = get(runtime, "/v1/base").json()
    assert "bases" not in alone
    with opened(tmp_path, base=BOTH) as runtime:
        first = get(runtime, "/v1/base").json()
        assert [base["digest"] for base in first["bases"]] == [spec(path).digest for path in PATHS.values()]
        assert first["bases"][1]["hidden_size"] == 48
        assert first["bases"][0] == {name: value for name, value in first.items() if name != "bases"} == alone
        for name, path in PATHS.items():
            assert get(runtime, f"/t/{name}@1/info").json()["model_id"] == spec(path).name
        limits = {
            label["base"]
            for metric in runtime.metrics.registry.collect()
            if metric.name == "onebert_batch_tokens_limit"
            for _, label, *_ in metric.samples
        }
        assert limits == {host.digest for host in runtime.hosts}


def test_bases_must_differ_and_some_commands_take_one():
    twice = load_settings(base=f"{tiny_base()},{tiny_base()}")
    with pytest.raises(InvalidSettings, match="two of the bases are the same"):
        load_hosts(twice)
    with pytest.raises(InvalidSettings, match="one base"):
        load_only_host(load_settings(base=BOTH))
