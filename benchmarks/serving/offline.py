"""Measures `onebert score` beside the engine alone, and writes the table of docs/offline.md.

    GOMP_SPINCOUNT=2000 python benchmarks/serving/offline.py     # the setting of the `onebert` command

The engine is given the same texts for the same tasks, tokenized already, as fast as it takes them, and its answers are
dropped; `passes` are the same without its queue, in the batches of `onebert score`. What is scored comes from a Parquet
file and goes into one: reading, tokenizing, columns, files and their fsync are in its time. Everything runs in one
process, turn by turn; the best turn of each counts, since what disturbs a machine only makes it slower.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Semaphore

import pyarrow
import pyarrow.parquet
import torch

from onebert_bench.pages import markdown_table, write_section
from onebert_bench.workload import bitfit_delta, sentences
from onebert_encoder.answering.scores import Logits
from onebert_server.access.context import own_work
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.engine.queue import INFINITY, QueueLimits
from onebert_server.engine.request import Item
from onebert_server.garbage import collect_seldom
from onebert_server.runtime import MAX_BATCH_SECONDS, load_bank, on_a_thread
from onebert_server.score.job import Job
from onebert_server.score.local import score_here
from onebert_server.score.output import open_output
from onebert_server.score.reading import read_windows
from onebert_server.score.rows import Chosen
from onebert_server.score.scorer import Scorer
from onebert_server.score.sources import find_sources
from onebert_server.score.tasks import ScoredTask
from onebert_server.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "offline.md"
# Tasks, and texts for each.
SCENES = ((1, 16384), (8, 2048))
KINDS = ("engine alone", "passes alone", "onebert score")
# Requests that wait for the engine, each a text with its tasks: more than it puts into a batch.
WAITING = 512
TEN_MILLION = 10_000_000


def main() -> None:
    """Measures every scene."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    keep_freed_memory()
    settings = Settings.model_construct(dtype=arguments.dtype)
    rows = []
    for tasks, texts in SCENES:
        with tempfile.TemporaryDirectory() as folder:
            best = Scene(settings, tasks, texts, Path(folder)).measure(arguments.turns)
        share = best["onebert score"] / best["engine alone"]
        hours = TEN_MILLION / best["onebert score"] / 3600
        rates = [f"{best[kind]:,.0f}" for kind in KINDS]
        rows.append([str(tasks), *rates, f"{share:.2f}", f"{hours:.1f} hours"])
    heads = ["tasks", *(f"{kind}, texts/s" for kind in KINDS), "score / engine", "ten million rows"]
    write_section(PAGE, "rates", markdown_table(heads, rows))
    print(markdown_table(heads, rows))


class Scene:
    """So many tasks on so many texts."""

    def __init__(self, settings: Settings, tasks: int, texts: int, folder: Path) -> None:
        self._threads, self._folder, self._texts = torch.get_num_threads(), folder, texts
        base, self._bank = on_a_thread(self._threads, lambda: load_bank(settings))
        found = [ScoredTask(f"task-{i}", None, bitfit_delta(base, i)) for i in range(tasks)]
        tokens = settings.max_batch_tokens
        self._scorer = on_a_thread(self._threads, lambda: Scorer(base, self._bank, found, tokens, all_scores=False))
        path = folder / "texts.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"id": range(texts), "text": sentences(base, texts)}), path)
        self._job = Job(
            sources=find_sources([str(path)]),
            encoding=None,
            chosen=Chosen(("text",), ("id",)),
            tasks=found,
            base=base.spec.digest,
            precision=base.dtype_name,
            all_scores=False,
            part_rows=32768,
            batch_tokens=tokens,
        )
        # Laid out once: of a text all tasks, in the order of the batches.
        self._prepared = [self._scorer.prepare(window) for window in read_windows(self._job, ())]
        limits = EngineLimits(tokens, QueueLimits(2**20, 2**26, INFINITY), MAX_BATCH_SECONDS)
        self._engine = Engine(base, self._bank, limits, threads=self._threads)
        self._engine.start()
        collect_seldom()

    def measure(self, turns: int) -> dict[str, float]:
        """Texts a second of each kind: the best turn, behind one to warm up."""
        runs: dict[str, Callable[[int], None]] = dict(zip(KINDS, (self._ask, self._pass, self._score), strict=True))
        best = dict.fromkeys(runs, 0.0)
        for turn in range(turns + 1):
            for kind, run in runs.items():
                started = time.perf_counter()
                run(turn)
                rate = self._texts / (time.perf_counter() - started)
                best[kind] = max(best[kind], rate) if turn else 0.0
        self._engine.close(1.0)
        return best

    def _ask(self, _: int) -> None:
        context, room = own_work("load"), Semaphore(WAITING)

        def answered(_: Future[list[Logits]]) -> None:
            room.release()

        for items in self._by_text():
            room.acquire()
            self._engine.submit(items, context).add_done_callback(answered)
        for _ in range(WAITING):
            room.acquire()

    def _by_text(self) -> Sequence[list[Item]]:
        """In the order of the file, whose texts have any length."""
        found: dict[tuple[int, int], list[Item]] = {}
        for number, window in enumerate(self._prepared):
            for batch in window.batches:
                for asked in batch:
                    found.setdefault((number, asked.text), []).append(asked.item)
        return [found[key] for key in sorted(found)]

    def _pass(self, _: int) -> None:
        on_a_thread(self._threads, lambda: sum(1 for _ in self._scorer.compute(self._prepared)))

    def _score(self, turn: int) -> None:
        with open_output(str(self._folder / f"scored-{turn}"), self._job) as output:
            output.write(score_here(self._job, (), self._scorer, self._threads), lambda _: None)
            output.finish()


if __name__ == "__main__":
    main()
