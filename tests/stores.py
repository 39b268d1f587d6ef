"""What tests look up in a store, and how they use a registry from many threads at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from onebert_store.registry import gc
from onebert_store.registry.store import join_store


def name_of(made):
    """The name of the file, or of the object, of a delta or of a version."""
    return made.digest.removeprefix("sha256:")


def digests(store):
    return {blob.digest for blob in store.blobs.blobs()}


def orphans(place):
    with join_store(place) as store:
        return {orphan.blob.digest for orphan in gc.find_orphans(store)}


def all_at_once(number, work, *refusals):
    """Runs `work(n)` of so many threads at the same time; their results in order, None for those who were refused."""
    start = threading.Barrier(number)

    def begin(n):
        start.wait()
        try:
            return work(n)
        except refusals:
            return None

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(begin, range(number)))
