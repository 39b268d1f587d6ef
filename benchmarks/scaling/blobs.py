"""What a file of a version costs in a folder, in a bucket, and from a copy of the bucket's on this machine.

    python benchmarks/scaling/blobs.py s3://BUCKET/PREFIX [--blobs 200] [--bytes 100000]

Region, address and credentials of the bucket come from the environment, as for the server. What is written is removed.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from onebert_store.blobs.store import BlobStore
from onebert_store.registry.store import StoreAddress, open_store


def main() -> None:
    """Writes and reads the same blobs in each place, and prints the median of each in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bucket")
    parser.add_argument("--blobs", type=int, default=200)
    parser.add_argument("--bytes", type=int, default=100_000)
    arguments = parser.parse_args()
    contents = [os.urandom(arguments.bytes) for _ in range(arguments.blobs)]
    print(f"{arguments.blobs} blobs of {arguments.bytes} bytes; medians in milliseconds")
    with tempfile.TemporaryDirectory(prefix="onebert-blobs-") as folder:
        for name, url, copies in (
            ("folder", None, 0),
            ("bucket", arguments.bucket, 0),
            ("copies", arguments.bucket, 2**33),
        ):
            address = StoreAddress.within(Path(folder) / name, blobs=url, copies_bytes=copies)
            with open_store(address, new_database=True) as store:
                _measure(name, store.blobs, contents)


def _measure(name: str, blobs: BlobStore, contents: Sequence[bytes]) -> None:
    digests: list[str] = []
    written = _median([lambda one=one: digests.append(blobs.put(one)) for one in contents])
    read = _median([lambda one=one: blobs.get(one) for one in digests])
    for digest in digests:
        blobs.delete(digest)
    print(f"{name:8} write {written:6.2f}  read {read:6.2f}")


def _median(calls: Sequence[Callable[[], object]]) -> float:
    times = []
    for call in calls:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
