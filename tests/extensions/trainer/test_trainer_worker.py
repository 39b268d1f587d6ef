"""The keeper of the training process, with a small process in its place that fails once."""

import sys

import pytest

from onebert_server.extensions.trainer import worker
from onebert_server.extensions.trainer.worker import Worker
from onebert_store.errors import TrainerFailed
from servers import wait_until

# Says half a line and lives on; started again, it answers.
ONCE = """
import json, os, pathlib, sys
number, mark = json.loads(sys.stdin.readline())["number"], pathlib.Path(sys.argv[1])
if mark.exists():
    print(json.dumps({"number": number, "done": {"nice": os.nice(0)}}), flush=True)
mark.touch()
print('{"number": 0, "do', flush=True)
sys.stdin.read()
"""


def test_half_a_line_fails_what_was_asked_and_the_process_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", ONCE))
    monkeypatch.setattr(worker, "RESTART_DELAY", 0.01)
    kept = Worker(str(tmp_path / "mark"))
    kept.start()

    def asked():
        found = []

        def sent():
            try:
                found.append(kept.ask({}, lambda _: None))
            except TrainerFailed:
                return False
            return True

        wait_until(sent)
        return found[0].result(30)

    try:
        with pytest.raises(TrainerFailed, match="started again"):
            asked()
        assert asked() == {"nice": 19}
    finally:
        kept.close()
