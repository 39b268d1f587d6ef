"""What the tests of `onebert score` share: its parts in this process, and its output as rows."""

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet

from bases import tiny_base
from forked import Forked
from onebert_server.score.command import ScoreOptions, run_score
from onebert_server.settings import Settings
from servers import clean_env, run_onebert, wait_until


def score_here(out: Path | str, tasks, data, *, data_dir="none", ray=None, **asked) -> None:
    """`onebert score` in this process, with the tiny base in float32."""
    settings = Settings.model_construct(base=(str(tiny_base()),), dtype="float32", threads=1, data_dir=Path(data_dir))
    options = {"text": None, "text_pair": None, "keep": (), "encoding": None, "all_scores": False, "part_rows": 100}
    named = [str(name) for name in (tasks if isinstance(tasks, list) else [tasks])]
    files = [str(name) for name in (data if isinstance(data, list) else [data])]
    run_score(ScoreOptions(named, files, str(out), **(options | asked)), settings, ray)


SETTINGS = {"base": tiny_base(), "dtype": "float32", "threads": 1}


def kill_and_go_on(command: Sequence[str], counts: Sequence[int], written: Callable[[], Mapping[str, Any]]) -> None:
    """Kills a job whenever so many parts are there, and lets it come to its end: no part is written a second time.

    Args:
        written: when each file of the job was written, by its name.
    """

    def parts() -> dict[str, Any]:
        return {name: time for name, time in written().items() if name.startswith("part-")}

    known: dict[str, Any] = {}
    for count in counts:
        quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        with Forked(*command, env=clean_env(**SETTINGS), **quiet) as process:
            wait_until(lambda count=count: len(parts()) >= count or process.poll() is not None)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert parts().items() >= known.items()
        assert "_done.json" not in written()
        known = parts()
    done = run_onebert(*command, **SETTINGS)
    assert done.returncode == 0, done.stderr
    assert parts().items() >= known.items()


def rows_of(out: Path) -> list[dict]:
    """Every row, in the order of the parts."""
    return pyarrow.parquet.read_table(out).to_pylist()


def bytes_of(out: Path) -> dict[str, bytes]:
    """Everything that a job has left, by name."""
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}
