"""Gates that revision 82b92e21 wrote (`tests/unit/server/test_old_store.py`) stay readable."""

import tarfile
from pathlib import Path

from runtimes import get, opened

ARCHIVE = Path(__file__).parents[2] / "old_store.tar.xz"


def test_gates_with_and_without_rows_are_readable(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with opened(tmp_path / "data", base=(str(tmp_path / "base"),)) as runtime:
        rows = {task: get(runtime, f"/v1/tasks/{task}/gate").json()["rows"] for task in ("tone", "mood")}
    assert rows == {"tone": 8, "mood": 0}
