"""Measures what front-end processes give: single-text requests with none, one and two of them, beside the engine alone.

    python benchmarks/front_ends.py [--front-ends 0 1 2] [--clients 1 64] [--rounds 3]

All servers stand side by side with the same tasks and take turns; the load comes from a process of its own.
"""

import argparse
import multiprocessing
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from onebert_bench.engine_load import TEXTS, run_engine
from onebert_bench.http_load import push_tasks, requests_of
from onebert_bench.load import Load, run_load
from onebert_bench.pages import markdown_table
from onebert_bench.suite.spread import Spread, ratio
from onebert_bench.workload import sentences
from onebert_encoder.base import load_base
from onebert_server.process import serving

ENGINE = "the engine alone"


def main() -> None:
    """Prints a line for each number of clients and of front ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--front-ends", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load in each turn")
    parser.add_argument("--base", help="Hub id or folder; default MiniLM-L6")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    loads = measure(arguments)
    header = ["clients", "front ends", "requests/s", "share of the engine", "p50, ms"]
    print(markdown_table(header, [line(loads, clients, layout) for clients, layout in loads]))


def measure(arguments: argparse.Namespace) -> dict[tuple[int, str], list[Load]]:
    """The loads of every round, by number of clients and layout; a round that does not count comes first."""
    base = load_base(arguments.base)
    texts = sentences(base, TEXTS)
    found: defaultdict[tuple[int, str], list[Load]] = defaultdict(list)
    fresh = multiprocessing.get_context("spawn")
    with (
        servers(arguments) as urls,
        ProcessPoolExecutor(1, fresh) as sender,
        ProcessPoolExecutor(1, fresh) as alone,
    ):
        for url in urls.values():
            push_tasks(url, base)
        for turn in range(arguments.rounds + 1):
            for clients in arguments.clients:
                of_load = (clients, arguments.seconds)
                done = {
                    layout: sender.submit(run_load, url, requests_of(url, texts), *of_load).result()
                    for layout, url in urls.items()
                }
                done[ENGINE] = alone.submit(run_engine, arguments.base, arguments.dtype, "cpu", *of_load).result()
                for layout, load in done.items():
                    found[clients, layout] += [load] if turn else []
    return found


@contextmanager
def servers(arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Addresses of servers with so many front ends each."""
    with ExitStack() as stack:
        folders = [
            stack.enter_context(tempfile.TemporaryDirectory(prefix="onebert-bench-")) for _ in arguments.front_ends
        ]
        settings = {"base": arguments.base, "dtype": arguments.dtype}
        yield {
            str(count): stack.enter_context(serving(Path(folder), **settings, front_ends=count)).url
            for count, folder in zip(arguments.front_ends, folders, strict=True)
        }


def line(loads: dict[tuple[int, str], list[Load]], clients: int, layout: str) -> Sequence[str]:
    """Medians with smallest and largest of the rounds; shares are taken within each round."""
    own, engine = ([load.rate for load in loads[clients, of]] for of in (layout, ENGINE))
    p50 = Spread.of([load.latency_ms(0.5) for load in loads[clients, layout]])
    return [str(clients), layout, str(Spread.of(own)), str(ratio(own, engine)), str(p50)]


if __name__ == "__main__":
    main()
