"""Keys of the registry: what is kept of one, who may be made one, what a change of them leaves in the audit trail."""

import hashlib
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengths import examples
from onebert_store.errors import InvalidInput, KeyNotFound, NoAdmin, OneBertError, OverQuota
from onebert_store.registry.database import KEYS, TABLES
from onebert_store.registry.grants import Grant, Quotas, Scope
from onebert_store.registry.records import Action, Actor
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from stores import all_at_once
from tiny_delta import make_delta

CI = Grant("ci", frozenset({Scope.UPLOAD}), ("acme-*",))
ADMIN = Grant("ops", frozenset({Scope.ADMIN}), ("acme-*", "*"))
BY = Actor("key:boss", "a-request")


def test_of_a_key_its_hash_alone_is_kept(registry, place):
    record, key = registry.keys.create(CI, by=BY)
    assert key.startswith("onebert_")
    assert len(key) > 40
    assert record.digest == hashlib.sha256(key.encode()).digest()
    assert record.digest.hex().startswith(record.id)
    with join_store(place) as store, store.database.reading() as connection:
        rows = [row for table in TABLES.sorted_tables for row in connection.execute(table.select())]
    assert record.id in str(rows)
    assert key not in str(rows)


def test_keys_are_listed_as_they_were_made_and_revoked(registry):
    end = datetime.now(UTC) + timedelta(days=90)
    wide = Grant("app", frozenset(Scope), ("a", "b-*"), "b-1@live", Quotas(3, 2**40, 0.5, 1e6))
    first, second = (registry.keys.create(*arguments)[0] for arguments in ((CI,), (wide, end)))
    assert registry.keys.all() == [first, second]
    assert (second.grant, second.expires_at, second.revoked_at) == (wide, end, None)
    marks = [registry.keys.mark()]
    revoked = registry.keys.revoke(first.id)
    marks.append(registry.keys.mark())
    assert registry.keys.revoke(first.id) == revoked, "it was revoked once"
    assert registry.keys.all() == [revoked, second]
    registry.keys.create(CI)
    marks.append(registry.keys.mark())
    assert len(set(marks)) == 3
    with pytest.raises(KeyNotFound, match="no key"):
        registry.keys.revoke("0" * 12)


def test_pages_of_keys_have_each_key_once(registry):
    made = [registry.keys.create(CI)[0] for _ in range(7)]
    pages, after = [], ""
    while page := registry.keys.page(after, 3):
        pages.append(page)
        after = page[-1].id
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [key for page in pages for key in page] == registry.keys.all()
    assert {key.id for key in registry.keys.all()} == {key.id for key in made}


def test_other_keys_are_seen_although_as_many_were_made_and_revoked(registry, place):
    """As after an older database was put back: the mark of what was known before is not that of what is there now."""
    marks = []
    for _ in range(2):
        registry.keys.revoke(registry.keys.create(CI)[0].id)
        marks.append(registry.keys.mark())
        with join_store(place) as store, store.database.writing() as connection:
            connection.execute(KEYS.delete())
    assert marks[0] != marks[1]


@pytest.mark.parametrize("odd", ["", "\0", "\udcff", "0" * 11 + "\0", "ⅻ" * 12])
def test_what_no_database_takes_as_a_text_is_refused_by_name(registry, odd):
    with pytest.raises(KeyNotFound):
        registry.keys.revoke(odd)
    with pytest.raises(InvalidInput, match="not a name"):
        registry.feed.audit(0, 9, task=odd)
    if not odd.isprintable():
        with pytest.raises(InvalidInput, match="not the name of a principal"):
            registry.feed.audit(0, 9, principal=odd)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"name": "Not a name"}, "not a name"),
        ({"scopes": frozenset()}, "at least one scope"),
        ({"tasks": ()}, "1 to 64 globs"),
        ({"tasks": ("a",) * 65}, "1 to 64 globs"),
        ({"tasks": ("a b",)}, "not a glob"),
        ({"tasks": ("a", "")}, "not a glob"),
        ({"tasks": ("[a]",)}, "not a glob"),
        ({"default_task": "blue"}, "not one of the key's tasks"),
        ({"default_task": "acme-1@@"}, "not a name"),
        ({"quotas": Quotas(tasks=0)}, "quota of tasks"),
        ({"quotas": Quotas(tokens=float("inf"))}, "quota of tokens"),
    ],
)
def test_no_key_is_made_that_breaks_a_rule(tmp_path, changes, rule):
    with Registry.open(tmp_path) as registry:
        with pytest.raises(InvalidInput, match=rule):
            registry.keys.create(Grant(**vars(CI) | changes))
        assert registry.keys.all() == []


def test_no_key_is_made_that_has_expired(registry):
    with pytest.raises(InvalidInput, match="future"):
        registry.keys.create(CI, datetime.now(UTC) - timedelta(seconds=1))


def test_an_open_server_makes_no_key_that_leaves_nobody_to_administer(registry):
    some_tasks = Grant("some", frozenset({Scope.ADMIN}), ("acme-*",))
    for grant in (CI, some_tasks):
        with pytest.raises(NoAdmin, match="onebert keys create"):
            registry.keys.create(grant, keep_admin=True)
    assert registry.keys.all() == []
    assert registry.feed.audit(0, 9) == []
    admin, _ = registry.keys.create(ADMIN, keep_admin=True)
    registry.keys.create(CI, keep_admin=True)
    registry.keys.revoke(admin.id)
    with pytest.raises(NoAdmin):
        registry.keys.create(CI, keep_admin=True)
    # Whoever has the host makes another one at any time.
    registry.keys.create(CI)


def test_the_audit_trail_says_who_made_and_revoked_which_key(registry):
    record, key = registry.keys.create(CI, by=BY)
    registry.keys.revoke(record.id, Actor("cli"))
    registry.keys.revoke(record.id, Actor("too late"))
    changes = registry.feed.audit(0, 9)
    assert [(change.action, change.key, change.principal, change.request) for change in changes] == [
        ("mint-key", f"ci/{record.id}", "key:boss", "a-request"),
        ("revoke-key", f"ci/{record.id}", "cli", ""),
    ]
    assert key not in str(changes)


def test_the_audit_trail_is_paged_and_filtered(registry):
    for number, (task, who) in enumerate([("a", "one"), ("b", "one"), ("a", "two"), ("a", "one")]):
        registry.add(task, make_delta(number + 1), by=Actor(who, f"request {number}"))
    registry.move_alias("a", "live", 3, 1, Actor("two"))
    registry.move_alias("a", "live", 1, 3, Actor("two"))
    every = registry.feed.audit(0, 99)
    assert [entry.seq for entry in every] == [1, 2, 3, 4, 5, 6]
    assert [(entry.before, entry.version, entry.rolled_back) for entry in every[4:]] == [(1, 3, False), (3, 1, True)]
    assert registry.feed.audit(2, 2) == every[2:4]
    assert registry.feed.audit(0, 99, task="a", principal="one") == [every[0], every[3]]
    assert registry.feed.audit(0, 99, since=every[2].at) == every[2:]
    assert registry.feed.audit(0, 99, task="nobodys") == []


def test_a_quota_of_tasks_is_kept_in_the_transaction(registry):
    """Eight threads upload to tasks of their own at once; three of them may."""
    by = Actor("key:small", quotas=Quotas(tasks=3))
    added = all_at_once(8, lambda n: registry.add(f"task-{n}", make_delta(n + 1), by=by), OverQuota)
    assert sum(map(bool, added)) == 3
    assert len(registry.tasks()) == 3
    mine = registry.tasks()[0].name
    registry.add(mine, make_delta(50), by=by)
    registry.add("others", make_delta(51), by=Actor("key:other", quotas=by.quotas))


NAMES = st.sampled_from(["a", "b"])
CHANGES = st.one_of(
    st.tuples(st.just("add"), NAMES, st.integers(0, 3), st.sampled_from(["ann", "bob"])),
    st.tuples(st.just("delete_version"), NAMES, st.integers(1, 5)),
    st.tuples(st.just("move_alias"), NAMES, st.just("live"), st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.just("delete_task"), NAMES),
)


@settings(max_examples=examples(40))
@given(st.lists(CHANGES, max_size=40))
def test_holdings_agree_with_the_audit_trail(tmp_path_factory, changes):
    with Registry.open(tmp_path_factory.mktemp("quotas")) as registry:
        for name, task, *rest in changes:
            with suppress(OneBertError):
                if name == "add":
                    registry.add(
                        task, make_delta(rest[0], labels=["a", "b", "c"][: 2 + rest[0] % 2]), by=Actor(rest[1])
                    )
                else:
                    getattr(registry, name)(task, *rest)
        sizes = {(entry.task, entry.version): entry.size for entry in registry.entries()}
        trail = [entry for entry in registry.feed.audit(0, 999) if entry.action == Action.UPLOAD]
        for who in ("ann", "bob"):
            held = {
                at: sizes[at]
                for entry in trail
                if entry.principal == who and (at := (entry.task, entry.version)) in sizes
            }
            tasks, stored = len({task for task, _ in held}), sum(held.values())
            registry.require_room("new", 1, Actor(who, quotas=Quotas(tasks=tasks + 1, bytes=stored + 1)))
            for quotas in (Quotas(bytes=stored or 1), Quotas(tasks=tasks or 1)):
                with pytest.raises(OverQuota) if held else nullcontext():
                    registry.require_room("new", 1, Actor(who, quotas=quotas))
            for task, _ in held:
                registry.require_room(task, 0, Actor(who, quotas=Quotas(tasks=tasks, bytes=stored)))


def test_a_quota_of_bytes_counts_what_is_stored_now(registry):
    by = Actor("key:small")
    record, _ = registry.add("a", make_delta(1), by=by)
    by = Actor(by.principal, quotas=Quotas(bytes=record.size * 2))
    registry.add("a", make_delta(2), by=by)
    with pytest.raises(OverQuota, match="bytes"):
        registry.add("b", make_delta(3), by=by)
    registry.add("a", make_delta(2), by=by)  # it is there already
    registry.move_alias("a", "live", 2, 1)
    registry.delete_version("a", 1)
    registry.add("b", make_delta(3), by=by)
