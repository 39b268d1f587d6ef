"""References are resolved once their versions are in memory: to what they mean then, and without a pin that is left."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bases import far_row, loaded
from directories import publish, retire
from onebert_encoder.answering.asked import Asked, AskedWindow
from onebert_server.access.principal import Principal, Scope
from onebert_server.answering import resolver
from onebert_server.answering.gateway import Resolved, Wanted
from onebert_server.answering.resolver import Resolver
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.host import Host
from onebert_server.engine.queue import QueueLimits
from onebert_server.versions.facts import Shadowing
from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.version import State, Version
from onebert_store.errors import (
    DeadlineExceeded,
    Forbidden,
    HeaderNeeded,
    InvalidInput,
    TaskNotFound,
    VersionNotFound,
    VersionUnavailable,
)
from onebert_store.file.manifest import parse_manifest
from onebert_store.registry.records import Alias, Payer, VersionRecord
from onebert_store.registry.target import Shadow, Target, alone
from parts import context
from tiny_delta import manifest_dict


class Loading:
    """Versions of a bank whose loader is the test."""

    def __init__(self, **hooks):
        self.host = Host(loaded(), Bank(loaded()))
        self.residents = Residents(Engine([self.host], EngineLimits(512, QueueLimits(4096, 2**19))), registry=None)
        self.directory = self.residents.directory
        self.resolver = Resolver(self.residents, **hooks)
        self.versions = {}

    def add(self, task, number=1, resident=True, manifest=None, **aliases):
        record = record_of(task, number, manifest or {})
        version = Version(record, self.row() if resident else None)
        self.versions[task, number] = version
        publish(self.directory, version, **aliases)
        return version

    def row(self):
        return self.host.install(far_row(loaded(), "frozen", labels=2, seed=1))

    def load(self, version):
        """Ends the loading of a version, as the loader does."""
        assert version.state is State.LOADING
        self.directory.loaded(version, self.row(), record_of(version.entry.task, version.entry.version))

    def move(self, task, **aliases):
        at = {
            alias: Alias(target if isinstance(target, Target) else alone(target)) for alias, target in aliases.items()
        }
        self.directory.show(task, (), at, ())

    def resolve(self, *refs, meanwhile=lambda: None, asks=None, wanted=None):
        """Resolves, and does something in the meantime, once the versions are waited for."""

        async def resolved():
            wants = wanted or Wanted(refs)
            resolving = asyncio.ensure_future(self.resolver.resolve(asks or context(), wants))
            for _ in range(5):
                await asyncio.sleep(0)
            if not resolving.done():
                meanwhile()
            return await resolving

        try:
            return asyncio.run(resolved())
        finally:
            assert not any(version.pins for version in self.versions.values())


def record_of(task, number, manifest=None):
    named = {"name": "tiny", "model_type": "bert", "digest": loaded().spec.digest}
    parsed = parse_manifest(manifest_dict(base=named, **manifest or {}))
    return VersionRecord(task, number, f"sha256:{number:064x}", 1, datetime(2026, 1, 1, tzinfo=UTC), parsed)


@pytest.fixture
def loading():
    return Loading()


def test_a_version_stays_for_whom_it_was_loaded(loading):
    cold, warm = loading.add("tone", resident=False, live=1), loading.add("mood", live=1)
    loading.resolve("tone", "mood", meanwhile=lambda: loading.load(cold))
    other = loading.add("other", live=1)
    assert loading.directory.evict() == other.held_slot or other.state is State.EVICTED
    assert loading.directory.evict() is None
    assert {cold.state, warm.state} == {State.RESIDENT}


def test_an_alias_that_moves_meanwhile_means_the_new_version(loading):
    before, after = loading.add("tone", 1, resident=False, live=1), loading.add("tone", 2)

    def meanwhile():
        loading.move("tone", live=2)
        loading.load(before)

    [version] = loading.resolve("tone", meanwhile=meanwhile)
    assert (version.facts.version, version.slot) == (2, after.slot.number)


@pytest.mark.parametrize(("ref", "error"), [("tone@1", VersionNotFound), ("mood", TaskNotFound)])
def test_what_is_deleted_while_it_is_loaded_is_not_there(loading, ref, error):
    version = loading.add("tone", 1, resident=False)
    loading.add("tone", 2, live=2)
    task = loading.add("mood", resident=False, live=1)

    def meanwhile():
        for gone in (version, task):
            retire(loading.directory, gone.entry.task, 1)

    with pytest.raises(error):
        loading.resolve(ref, meanwhile=meanwhile)


def test_of_a_partial_answer_each_reference_has_its_own_error(loading):
    """Beside a version that is in memory, one that loads, one that fails to, one that is late, and none at all."""
    loading.add("tone", live=1)
    cold, late, broken = (loading.add(task, resident=False, live=1) for task in ("cold", "late", "broken"))

    def meanwhile():
        loading.load(cold)
        loading.directory.failed(broken, "it is broken", None)

    refs = ["late", "tone", "nobody", "cold", "broken", "not a name", "tone@7", "tone"]
    outcomes = loading.resolve(meanwhile=meanwhile, asks=context(seconds=0.2), wanted=Wanted(refs, partial=True))
    assert [outcome.facts.ref if isinstance(outcome, Resolved) else type(outcome) for outcome in outcomes] == [
        *(DeadlineExceeded, "tone@1", TaskNotFound, "cold@1", VersionUnavailable, InvalidInput, VersionNotFound),
        "tone@1",
    ]
    assert late.state is State.LOADING


def test_one_reference_that_fails_fails_all(loading):
    cold = loading.add("tone", resident=False, live=1)

    def meanwhile():
        loading.directory.failed(cold, "for a test", None)

    loading.add("mood", live=1)
    with pytest.raises(VersionUnavailable, match="for a test"):
        loading.resolve("mood", "tone", meanwhile=meanwhile)
    loading.directory.begin_loading(cold)
    with pytest.raises(DeadlineExceeded):
        loading.resolve("mood", "tone", asks=context(seconds=0.01))


def test_headers_that_were_not_sent_are_asked_for(loading):
    loading.add("tone", 1, resident=False)
    loading.add("tone", 2)
    loading.move("tone", live=Target(((1, 50), (2, 50)), "header:X-User"))
    asks = context()

    def header(name):
        asks.lacking.append(name)

    asks = replace(asks, header=header)
    with pytest.raises(HeaderNeeded, match="x-user"):
        loading.resolve("tone", asks=asks)


def test_shadows_are_named_with_their_payer():
    loading = Loading(shadowed=[lambda *_: None])
    live, shadow, payer = loading.add("tone", 1), loading.add("tone", 2), Payer("key:k", None, None)
    target = Target(((1, 100),), None, (Shadow(2, 100),))
    loading.directory.show("tone", (), {"live": Alias(target, payer=payer)}, ())
    [version] = loading.resolve("tone")
    assert version.shadows == Shadowing((live.facts.identity, shadow.facts.identity), payer)
    for _ in range(2):
        assert loading.resolver.held(version.shadows) == (live, shadow)
    assert loading.resolver.held(version.shadows).payer == payer
    other = version.shadows._replace(versions=(version.facts.identity, ("tone@2", "another digest")))
    assert loading.resolver.held(other) == (live,)
    retire(loading.directory, "tone", 1)
    assert loading.resolver.held(version.shadows) == ()


def test_every_task_means_those_that_may_answer(loading, monkeypatch):
    loading.add("a", live=1)
    cold = loading.add("b", resident=False, live=1)
    loading.add("c", manifest={"max_length": 6}, live=1)
    loading.add("tags", manifest={"task_type": "token", "pooling": "none"}, live=1)

    def names(who=None, **asked):
        asks = replace(context(), principal=who or context().principal)
        versions = loading.resolve(
            asks=asks, wanted=Wanted(None, asked=Asked(**asked)), meanwhile=lambda: loading.load(cold)
        )
        return [each.facts.task for each in versions]

    assert names() == ["a", "b", "c", "tags"]
    assert names(window=AskedWindow(tokens=8)) == ["a", "b", "tags"]
    assert names(Principal("key:k", frozenset(Scope), ("b", "tags"))) == ["b", "tags"]
    with pytest.raises(Forbidden):
        names(Principal("key:k", frozenset({Scope.PROMOTE}), ("*",)))
    monkeypatch.setattr(resolver, "MAX_FANOUT", 3)
    with pytest.raises(InvalidInput, match="more than 3 tasks"):
        names()
