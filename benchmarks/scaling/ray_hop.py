"""The price of the way over Ray Serve: the same questions to one process, to a front end beside it, and to a cluster.

    ray start --head --num-cpus 2 --disable-usage-stats
    python benchmarks/scaling/ray_hop.py --registry postgresql://… [--ray auto] [--tiny] [--seconds 3] [--rounds 5]

Three servers with one thread each answer single texts for 64 tasks, in turns, to one client and to 16. The registry has
to be empty. With `--tiny` a base of two tiny layers stands for a device that costs nothing.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from onebert_bench.load import run_load
from onebert_bench.report import markdown_table
from onebert_bench.script import options
from onebert_bench.servers import TEXTS, bitfit_files, push_tasks, requests_for
from onebert_bench.timing import in_turns
from onebert_bench.workload import MINILM, TINY, base_folder
from onebert_encoder.base.base import load_base
from onebert_server.process import serving
from onebert_store.command.process import running

CLIENTS = (1, 16)
TEXT = "the parcel arrived late and the box was open"


def main() -> None:
    """Starts the servers and prints medians over the rounds."""
    asked = options(__doc__, registry=str, ray="auto", tiny=False, seconds=3.0, rounds=5)
    with tempfile.TemporaryDirectory(prefix="onebert-ray-") as folder, ExitStack() as stack:
        data = Path(folder)
        base = base_folder(TINY if asked.tiny else MINILM, data)
        settings = {"registry": asked.registry, "threads": 1, "dtype": "float32", "base": base}
        urls = {
            "one process": stack.enter_context(serving(data, **settings)).url,
            "a front end beside it": stack.enter_context(serving(data, front_ends=1, **settings)).url,
            "a replica and a front end on Ray": stack.enter_context(on_ray(asked.ray, data, **settings)),
        }
        push_tasks(urls["one process"], bitfit_files(load_base(str(base))))
        texts = [f"{TEXT} {number}" for number in range(TEXTS)]
        runs = {
            (clients, name): partial(run_load, url, requests_for(url, texts), clients, asked.seconds)
            for clients in CLIENTS
            for name, url in urls.items()
        }
        found = in_turns(runs, asked.rounds)
    rows = [
        [
            *(*key, f"{median(one.rate for one in loads):.0f}"),
            *(f"{median(one.latency_ms(share) for one in loads):.2f}" for share in (0.5, 0.99)),
            sum(one.refused for one in loads),
        ]
        for key, loads in found.items()
    ]
    print(markdown_table(["clients", "server", "requests a second", "p50 ms", "p99 ms", "refused"], rows))


@contextmanager
def on_ray(address: str, data: Path, **settings: object) -> Iterator[str]:
    """The address of a server on a cluster with one front end."""
    with running("serve", "--ray", address, **{"data_dir": data, "port": 0, **settings}) as process:
        yield next(line.split()[-1] for line in process.stdout or () if line.startswith("Listening on"))


if __name__ == "__main__":
    main()
