"""The entries that are measured in process, OneBERT and its peers, and the Python environments they run in."""

import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).parents[2] / "peers"
"""The scripts, which run in the peers' own environments."""


class PeerFailed(Exception):
    """A peer cannot be installed, does not run, or fails on a batch: the page shows why, and the run goes on."""


@dataclass(frozen=True)
class Entry:
    """One way to answer, and what it can do.

    Attributes:
        title: its name in tables and pictures.
        script: file in `PEERS`, which is told the entry's name.
        environment: name in `ENVIRONMENTS`.
        dtypes: the dtypes that it can compute in.
        answers: whether it returns a task's logits, which are then checked.
    """

    title: str
    script: str
    environment: str
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    answers: bool = True


# In the order of the tables.
ENTRIES: Mapping[str, Entry] = {
    "floor": Entry("the matrix products alone", "ours.py", "ours", answers=False),
    "ours": Entry("OneBERT", "ours.py", "ours", ("float32", "bfloat16", "int8")),
    "transformers_padded": Entry("transformers, padded", "hugging_face.py", "torch"),
    "transformers_sorted": Entry("transformers, sorted by length", "hugging_face.py", "torch"),
    "transformers_compiled": Entry("transformers, torch.compile", "hugging_face.py", "torch"),
    "transformers_swapped": Entry("transformers, a model a task", "hugging_face.py", "torch"),
    "onnx_runtime": Entry("ONNX Runtime", "onnx_runtime.py", "onnx", ("float32", "int8")),
    "onnx_swapped": Entry("ONNX Runtime, a session a task", "onnx_runtime.py", "onnx", ("float32", "int8")),
    "open_vino": Entry("OpenVINO", "open_vino.py", "openvino"),
    "peft_mixed": Entry("peft, adapter_names", "peft_adapters.py", "torch"),
    "peft_swapped": Entry("peft, set_adapter", "peft_adapters.py", "torch"),
    "reference": Entry("each text alone in the merged model", "hugging_face.py", "torch", ("float32",)),
}

# The bounds of pyproject.toml: without an upper bound pip would take versions that were never tried.
_TORCH = "torch>=2.9,<2.14"
_TRANSFORMERS = "transformers>=5,<6"

# Name -> packages that pip installs; none for `ours`, which runs the bench. Peers whose versions agree share one.
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "ours": (),
    "torch": (_TORCH, _TRANSFORMERS, "peft>=0.18", "fastapi", "uvicorn[standard]"),
    "onnx": (_TORCH, _TRANSFORMERS, "onnx", "onnxscript", "onnxruntime"),
    "openvino": (_TORCH, _TRANSFORMERS, "openvino"),
    "infinity": (_TORCH, "infinity-emb[torch,server]"),
    "static": (
        *(_TORCH, _TRANSFORMERS, "model2vec[distill]>=0.10", "fasttext-numpy2>=0.10", "scikit-learn"),
        *("fastapi", "uvicorn[standard]"),
    ),
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
