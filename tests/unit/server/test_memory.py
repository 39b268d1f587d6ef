"""Memory: the collector passes over what was there before a server began; what a batch frees is kept for the next."""

import gc
import platform
import subprocess
import sys
import weakref

import pytest

from onebert_server.engine.memory import YOUNG, importing


@pytest.fixture(autouse=True)
def collector_as_it_was():
    """Undoes for other tests what a server does once."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Node:
    """An object that may refer to itself."""

    itself: "Node"


def ring():
    """Garbage that only the collector finds."""
    node = Node()
    node.itself = node
    return weakref.ref(node)


def test_what_is_imported_is_passed_over_and_garbage_found_again():
    with importing():
        imported = ring()
        lists = [[] for _ in range(2 * YOUNG)]
    later = ring()
    gc.collect()
    assert imported() is not None
    assert later() is None
    assert gc.isenabled()
    assert len(lists) == 2 * YOUNG


# A block above all that glibc keeps by itself, made and freed again and again.
PAGES_OF_TEN_BLOCKS = """
import resource
from onebert_server.engine.memory import keep_freed_memory
keep_freed_memory()
b"x" * (40 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    b"x" * (40 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_a_freed_block_is_used_again_without_new_pages():
    child = subprocess.run([sys.executable, "-c", PAGES_OF_TEN_BLOCKS], capture_output=True, text=True, check=True)
    assert int(child.stdout) < (40 << 20) // 4096 / 10
