"""A full disk, as a small file system in a mount namespace, refuses no deletion of kept answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import full_disk
from pods import needs_pods


@needs_pods
@pytest.mark.parametrize("deletion", full_disk.DELETIONS)
@pytest.mark.parametrize(("megabytes", "characters"), [(4, 300), (4, 30_000)])
def test_a_full_disk_refuses_no_deletion(tmp_path, deletion, megabytes, characters):
    script = [sys.executable, full_disk.__file__, tmp_path, deletion, characters]
    lines = [f"mount -t tmpfs -o size={megabytes}m tmpfs {tmp_path}", "exec " + " ".join(map(str, script))]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-eu", "-c", "\n".join(lines)]
    environment = os.environ | {"PYTHONPATH": str(Path(full_disk.__file__).parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    left = result["before"] - 1 if deletion == "one" else 0
    assert result == {"before": result["before"], "left": left, "error": None}
    assert result["before"] > 20
