"""Run in a mount namespace of its own: fills a disk of few megabytes, and prints what a deletion does then.

`python tests/full_disk.py FOLDER PART`: PART are deletions of `DELETIONS`.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from cryptography.fernet import Fernet

from onebert_store.errors import OneBertError, StorageFull
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import open_store
from onebert_store.samples.records import Sample
from onebert_store.samples.store import open_samples
from tiny_delta import make_delta

DELETIONS = {
    "samples": lambda registry, samples, id: (registry.delete_keeping("tone"), samples.delete_texts(id)),
    "one": lambda registry, samples, id: samples.delete_sample("tone", "0/0"),
    "task": lambda registry, samples, id: (registry.delete_task("tone"), samples.sweeper.sweep([id])),
}


def main(folder, deletion, characters):
    with open_store(folder) as store, open_samples(store.database, [Fernet.generate_key().decode()]) as samples:
        registry = Registry(store)
        registry.add("tone", make_delta(1))
        registry.set_keeping("tone", Keeping(1.0, 3650, 1_000_000))
        samples.prepare()
        owner = samples.owner("tone")
        fill(samples, owner.keeping, "x" * characters)
        with open(folder / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
        before = samples.count("tone")
        try:
            DELETIONS[deletion](registry, samples, owner.task)
            error = None
        except OneBertError as refusal:
            error = refusal.detail
        with samples.database.reading() as connection:
            left = connection.exec_driver_sql("SELECT COUNT(*) FROM samples").scalar()
        print(json.dumps({"before": before, "left": left, "error": error}))


def fill(samples, keeping, text):
    """Keeps answers of one text each until the disk is full, fewer at a time near the end."""
    together, number = min(64, 2**18 // len(text)), 0
    while together:
        rows = [
            Sample("tone", f"{number}/{at}", 1, datetime.now(UTC), "key:app", (text,), ("angry",), 0.5, 1.0)
            for at in range(together)
        ]
        try:
            samples.keep([(keeping, row) for row in rows])
            number += 1
        except StorageFull:
            together //= 2


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
