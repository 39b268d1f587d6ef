"""The cheap floors, classifiers without an encoder: how they are trained, and how they are served."""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from onebert_bench.script import ROOT
from onebert_bench.suite.peers import PEERS, PeerFailed, python_of
from onebert_bench.suite.servers import PEER_SERVERS, Launch, Peer
from onebert_bench.suite.workers import environment
from onebert_bench.workload import MINILM, base_folder
from onebert_training.data.examples import Split

KINDS = {"model2vec": "FastAPI, model2vec and logistic heads", "fasttext": "FastAPI, fastText"}
CACHE = ROOT / ".bench"


def train_floor(kind: str, splits: Mapping[str, Split], folder: Path, cache: Path = CACHE) -> np.ndarray:
    """Trains on the training rows, by the validation rows' choice of settings; the folder gets the model.

    Returns: log probabilities [test rows, labels].

    Raises:
        PeerFailed: its packages cannot be installed, or it does not train.
    """
    python = python_of("static", cache / "environments")
    with tempfile.TemporaryDirectory(prefix="onebert-bench-") as rows:
        for name, split in splits.items():
            lines = "".join(f"{json.dumps(row)}\n" for row in _written(split))
            (Path(rows) / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        _run(python, "static_models.py", kind, vectors_in(cache), rows, folder)
    return np.array(json.loads((folder / "decisions.json").read_text(encoding="utf-8")), dtype=np.float32)


def vectors_in(cache: Path) -> Path:
    """The folder of the static vectors, distilled from MiniLM once; takes a minute or two."""
    folder = cache / "work" / "static-vectors"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        python = python_of("static", cache / "environments")
        _run(python, "static_vectors.py", base_folder(MINILM, cache / "work"), folder)
    return folder


def floor_server(kind: str, model: Path, cache: Path = CACHE) -> Peer:
    """A server that loads a trained model for each task."""

    def command(at: Launch) -> tuple[object, ...]:
        return (at.python, PEERS / "http_static.py", kind, vectors_in(cache), model, at.port, at.tasks)

    asked = PEER_SERVERS["fastapi"]
    return Peer(KINDS[kind], "static", command, asked.request, asked.read)


def _written(split: Split) -> list[dict[str, object]]:
    texts = [text if isinstance(text, str) else " ".join(text) for text in split.texts]
    return [{"text": text, "label": int(gold)} for text, gold in zip(texts, split.gold, strict=True)]


def _run(python: Path, script: str, *arguments: object) -> None:
    command = [str(part) for part in (python, PEERS / script, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(1))
    if done.returncode:
        raise PeerFailed((done.stderr.strip().splitlines() or [f"{script} failed and said nothing"])[-1])
