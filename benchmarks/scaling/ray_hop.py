"""The price of the way over Ray Serve: the same questions to one process, to a front end beside it, and to a cluster.

    ray start --head --num-cpus 2 --disable-usage-stats
    python benchmarks/scaling/ray_hop.py --registry postgresql://… [--ray auto] [--tiny] [--seconds 3] [--rounds 5]

Three servers with one thread each answer single texts for 64 tasks, in turns, to one client and to 16. The registry has
to be empty. With `--tiny` a base of two tiny layers stands for a device that costs nothing.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from onebert_bench.load import Load, Request, run_load
from onebert_bench.suite.workload import MINILM, TINY, Workload
from onebert_bench.workload import bitfit_delta
from onebert_encoder.base.base import load_base
from onebert_server.client import Client
from onebert_server.process import serving
from onebert_store.command.process import running
from onebert_store.file.format import dumps

TASKS = 64
CLIENTS = (1, 16)
TEXT = "the parcel arrived late and the box was open"


def main() -> None:
    """Starts the servers and prints what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registry", required=True)
    parser.add_argument("--ray", default="auto")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onebert-ray-") as folder, ExitStack() as stack:
        data = Path(folder)
        base = Workload(TINY if asked.tiny else MINILM, data, None).folder
        settings = {"registry": asked.registry, "threads": 1, "dtype": "float32", "base": base}
        urls = {
            "one process": stack.enter_context(serving(data, **settings)).url,
            "a front end beside it": stack.enter_context(serving(data, front_ends=1, **settings)).url,
            "a replica and a front end on Ray": stack.enter_context(on_ray(asked.ray, data, **settings)),
        }
        loaded = load_base(str(base))
        with Client(urls["one process"]) as client:
            for number in range(TASKS):
                client.push(f"task-{number}", dumps(bitfit_delta(loaded, number)))
        measure(urls, asked.seconds, asked.rounds)


@contextmanager
def on_ray(address: str, data: Path, **settings: object) -> Iterator[str]:
    """The address of a server on a cluster with one front end."""
    with running("serve", "--ray", address, **{"data_dir": data, "port": 0, **settings}) as process:
        yield next(line.split()[-1] for line in process.stdout or () if line.startswith("Listening on"))


def measure(urls: dict[str, str], seconds: float, rounds: int) -> None:
    """Loads each server in turns and prints medians over the rounds."""
    seen: dict[tuple[str, int], list[Load]] = defaultdict(list)
    for turn in range(rounds + 1):
        for clients in CLIENTS:
            for name, url in urls.items():
                requests = [
                    Request(f"/v1/tasks/task-{number}/classify", f'{{"inputs":"{TEXT} {number}"}}').encode(url)
                    for number in range(TASKS)
                ]
                load = run_load(url, requests, clients, seconds)
                # The first turn warms up.
                seen[name, clients] += [load] if turn else []
    for clients in CLIENTS:
        print(f"{clients} client{'s' * (clients > 1)}: requests a second, p50 ms, p99 ms, refused")
        for name in urls:
            loads = seen[name, clients]
            rate, p50, p99 = (
                median(values)
                for values in zip(
                    *((one.rate, one.latency_ms(0.5), one.latency_ms(0.99)) for one in loads), strict=True
                )
            )
            print(f"  {name}: {rate:.0f}, {p50:.2f}, {p99:.2f}, {sum(one.refused for one in loads)}")


if __name__ == "__main__":
    main()
