"""The garbage collector passes over what was there before, and still finds what comes later."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from onebert_server.garbage import YOUNG, collect_seldom, importing


@pytest.fixture(autouse=True)
def collector_as_it_was() -> Iterator[None]:
    """Undoes for other tests what a server does once."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Node:
    """An object that may refer to itself."""

    itself: "Node"


def ring() -> weakref.ref[Node]:
    """Garbage that only the collector finds."""
    node = Node()
    node.itself = node
    return weakref.ref(node)


def test_what_exists_is_passed_over() -> None:
    before = ring()
    collect_seldom()
    gc.collect()
    assert before() is not None


def test_what_is_imported_is_passed_over_and_garbage_found_again() -> None:
    with importing():
        imported = ring()
        kept: list[list[int]] = [[] for _ in range(2 * YOUNG)]
    later = ring()
    gc.collect()
    assert imported() is not None
    assert later() is None
    assert gc.isenabled()
    assert len(kept) == 2 * YOUNG


def test_garbage_that_comes_later_is_still_found() -> None:
    collect_seldom()
    assert gc.get_threshold()[0] == YOUNG
    later = ring()
    kept: list[list[int]] = [[] for _ in range(2 * YOUNG)]
    assert later() is None
    assert len(kept) == 2 * YOUNG
