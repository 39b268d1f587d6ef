"""The keeper of the training process, with a small process in its place that fails once."""

import sys

import pytest

from onebert_server.extensions.trainer import worker
from onebert_server.extensions.trainer.worker import Worker
from onebert_store.errors import ShuttingDown, TrainerFailed

# Prints half a line and ends; started again, it answers.
ONCE = """
import json, os, pathlib, sys
mark = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    if not mark.exists():
        mark.touch()
        print('{"do', end="", flush=True)
        break
    print(json.dumps({"done": {"nice": os.nice(0)}}), flush=True)
"""


def test_half_a_line_fails_the_request_and_the_process_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", ONCE))
    keeper = Worker(str(tmp_path / "mark"))
    try:
        with pytest.raises(TrainerFailed, match="started again"):
            keeper.ask({})
        assert [keeper.ask({}), keeper.ask({})] == [{"nice": 5}] * 2
    finally:
        keeper.close()
    with pytest.raises(ShuttingDown):
        keeper.ask({})
