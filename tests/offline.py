"""What the tests of `onebert score` share: its parts in this process, and its output as rows."""

from pathlib import Path

import pyarrow.parquet

from bases import tiny_base
from onebert_server.score.command import Asked, run_score
from onebert_server.settings import Settings


def score_here(out: Path | str, tasks, data, *, data_dir="none", ray=None, **asked) -> None:
    """`onebert score` in this process, with the tiny base in float32."""
    settings = Settings.model_construct(base=str(tiny_base()), dtype="float32", threads=1, data_dir=Path(data_dir))
    options = {"text": None, "text_pair": None, "kept": (), "encoding": None, "all_scores": False, "part_rows": 100}
    named = [str(one) for one in (tasks if isinstance(tasks, list) else [tasks])]
    files = [str(one) for one in (data if isinstance(data, list) else [data])]
    run_score(Asked(named, files, str(out), ray=ray, **(options | asked)), settings)


def rows_of(out: Path) -> list[dict]:
    """Every row, in the order of the parts."""
    return pyarrow.parquet.read_table(out).to_pylist()


def bytes_of(out: Path) -> dict[str, bytes]:
    """Everything that a job has left, by name."""
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}
