"""Measures `onebert score --ray` beside Ray Data, whose actors compute by the same code, on a cluster of this machine.

    GOMP_SPINCOUNT=2000 python benchmarks/scaling/ray_data.py [--rows 40000] [--turns 2]   # Ray Data needs pandas, too

Both score the same Parquet file with one BitFit task into Parquet files, each on one process a core; Ray Data by
`read_parquet`, `map_batches` with an actor that has loaded base and task, and `write_parquet`. The time has everything
from the first row to the last file, the start of the processes included; the best turn counts.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch

from onebert_bench.pages import markdown_table
from onebert_bench.workload import bitfit_delta, sentences
from onebert_encoder.base.base import Base
from onebert_server.runtime import load_bank, on_a_thread
from onebert_server.score.job import Job
from onebert_server.score.output import open_output
from onebert_server.score.ray_cluster import score_on_cluster
from onebert_server.score.reading import Window
from onebert_server.score.rows import Chosen, Rows
from onebert_server.score.scorer import Scorer
from onebert_server.score.sources import find_sources
from onebert_server.score.tasks import ScoredTask
from onebert_server.settings import Settings
from onebert_store.command.cluster import ray

WINDOW_ROWS = 4096
PART_ROWS = 8192


def main() -> None:
    """Prints rows a second, and what each has written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--turns", type=int, default=2)
    asked = parser.parse_args()
    settings = Settings.model_construct()
    base, _ = on_a_thread(torch.get_num_threads(), lambda: load_bank(settings))
    tasks = [ScoredTask("task", None, bitfit_delta(base, 0))]
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="onebert-ray-data-") as folder:
        data = Path(folder) / "texts.parquet"
        texts = sentences(base, asked.rows)
        pyarrow.parquet.write_table(
            pyarrow.table({"id": range(asked.rows), "text": texts}), data, row_group_size=PART_ROWS
        )
        seconds: dict[str, list[float]] = {"onebert score --ray": [], "Ray Data": []}
        files = {}
        for turn in range(asked.turns):
            for name, run in zip(seconds, (by_tasks, by_ray_data), strict=True):
                out = Path(folder) / f"{name}-{turn}"
                # Actors keep their cores: without one more for its readers and writers Ray Data waits for ever.
                slots = cores + (run is by_ray_data)
                ray.init("local", num_cpus=slots, num_gpus=0, include_dashboard=False, log_to_driver=False)
                started = time.perf_counter()
                run(data, out, base, tasks, cores)
                seconds[name].append(time.perf_counter() - started)
                ray.shutdown()
                written = [pyarrow.parquet.read_metadata(path).num_rows for path in out.glob("*.parquet")]
                if sum(written) != asked.rows:
                    raise SystemExit(f"{name} has written {sum(written)} rows")
                files[name] = len(written)
    rows = [[name, f"{asked.rows / min(taken):,.0f}", str(files[name])] for name, taken in seconds.items()]
    print(markdown_table(["", "rows/s", "files"], rows))


def by_tasks(data: Path, out: Path, base: Base, tasks: Sequence[ScoredTask], cores: int) -> None:
    """As `onebert score --ray` does it."""
    job = Job(
        sources=find_sources([str(data)]),
        encoding=None,
        chosen=Chosen(("text",), ("id",)),
        tasks=tasks,
        base=base.spec.digest,
        precision=base.dtype_name,
        all_scores=False,
        part_rows=PART_ROWS,
        batch_tokens=Settings.model_construct().max_batch_tokens,
    )
    with open_output(str(out), job) as output:
        output.write(score_on_cluster(job, (), None, "cpu", cores), lambda _: None)
        output.finish()


def by_ray_data(data: Path, out: Path, base: Base, tasks: Sequence[ScoredTask], cores: int) -> None:
    """As somebody would do it who writes it with Ray Data."""
    import ray.data  # noqa: PLC0415 - needs what the rest does not

    scored = ray.data.read_parquet(str(data)).map_batches(
        Scores,
        fn_constructor_args=(ray.put([*tasks]), base.dtype_name),
        batch_size=WINDOW_ROWS,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=cores),
        num_cpus=1,
    )
    scored.write_parquet(str(out))


class Scores:
    """An actor of Ray Data: the base with the tasks, loaded once."""

    def __init__(self, tasks: "ray.ObjectRef[list[ScoredTask]]", dtype: str) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.set_num_threads(1)
        settings = Settings.model_construct(dtype=dtype, device="cpu")
        self._scorer = Scorer(*load_bank(settings), ray.get(tasks), settings.max_batch_tokens, all_scores=False)

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        """Scores a window of rows."""
        rows = Rows(table.select(["id"]), table["text"].to_pylist(), [None] * len(table))
        prepared = self._scorer.prepare(Window("part", rows, 0, len(table)))
        [computed] = self._scorer.compute([prepared])
        return self._scorer.answers(computed)


if __name__ == "__main__":
    main()
