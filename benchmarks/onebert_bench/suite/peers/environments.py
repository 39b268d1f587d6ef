"""Python environments of the peers, installed once from the package index and kept for later runs."""

import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from onebert_bench.suite.peers.errors import PeerFailed

# The bounds of pyproject.toml: without an upper bound pip would take versions that were never tried.
_TORCH = "torch>=2.9,<2.14"
_TRANSFORMERS = "transformers>=5,<6"

# Name -> packages that pip installs; none for `ours`, which runs the bench. Peers whose versions agree share one.
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "ours": (),
    "torch": (_TORCH, _TRANSFORMERS, "peft>=0.18", "sentence-transformers>=5", "fastapi", "uvicorn[standard]"),
    "onnx": (_TORCH, _TRANSFORMERS, "onnx", "onnxscript", "onnxruntime"),
    "openvino": (_TORCH, _TRANSFORMERS, "openvino"),
    "adapters": (_TORCH, "adapters"),
    "infinity": (_TORCH, "infinity-emb[torch,server]"),
    "ray": (_TORCH, _TRANSFORMERS, "ray[serve]"),
}


def python_of(name: str, folder: Path) -> Path:
    """The interpreter of an environment, which is installed if it does not exist or was made for other packages.

    Raises:
        PeerFailed: pip could not install the packages; the message is pip's last line.
    """
    if not ENVIRONMENTS[name]:
        return Path(sys.executable)
    wanted = "\n".join(ENVIRONMENTS[name])
    place, made_for = folder / name, folder / name / "made-for.txt"
    python = place / "bin" / "python"
    if not made_for.is_file() or made_for.read_text(encoding="utf-8") != wanted:
        venv.create(place, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *ENVIRONMENTS[name]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip said nothing"]
            raise PeerFailed(f"environment {name}: {lines[-1].strip()}")
        made_for.write_text(wanted, encoding="utf-8")
    return python
