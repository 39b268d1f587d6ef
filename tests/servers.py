"""Real servers for tests, as processes on a free loopback port; tasks for them, and what they must answer."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import forked
from bases import Reference, far_delta, manifest_for, tiny_base
from forked import Forked
from json_client import JsonClient
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.predict import golden_tokens
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps, loads
from onebert_store.file.manifest import parse_manifest
from onebert_store.registry.records import VersionRecord
from onebert_store.registry.registry import Registry

# The server has the other cores.
torch.set_num_threads(1)

ONEBERT = Path(sys.executable).with_name("onebert")
MAX_LENGTH = 48

# For what must not differ between one process and front ends beside the engine's: the number of these. Both run the
# same web application; what differs, the seam, is tested before every landing (`test_remote.py`, `parts.py`,
# `test_front_ends.py`, and all of `test_http.py`), every other test through it by `make test-all`.
IDS = ["one process", "front ends"]
LAYOUTS = {"argvalues": [0, pytest.param(2, marks=pytest.mark.slow)], "ids": IDS}
layouts = pytest.mark.parametrize("server", indirect=True, **LAYOUTS)
both_layouts = pytest.mark.parametrize("server", [0, 2], indirect=True, ids=IDS)
front_ends = pytest.mark.parametrize("server", [2], indirect=True, ids=IDS[1:])


def clean_env(**settings):
    """The environment without ONEBERT_… of the machine, with those given, one thread per process, and no terminal."""
    # Where tests run side by side, their processes are told the width of a terminal.
    env = {name: value for name, value in os.environ.items() if not name.startswith("ONEBERT_") and name != "COLUMNS"}
    return env | {"OMP_NUM_THREADS": "1"} | {f"ONEBERT_{name.upper()}": str(value) for name, value in settings.items()}


def run_onebert(*arguments, stdin="", env=None, **settings):
    """Runs one command to its end; `env` holds variables beside the settings."""
    return forked.run(*arguments, given=stdin, env=clean_env(**settings) | (env or {}))


class Server:
    """A server process; leaving `with` stops it by SIGTERM and expects exit code 0."""

    def __init__(self, folder: Path, **settings) -> None:
        self.folder = folder
        self.settings = {
            "base": tiny_base(),
            "dtype": "float32",
            "threads": 1,
            "port": 0,
            "data_dir": folder / "data",
            # What waits is bounded by count alone, so that a busy machine refuses nothing that an idle one would not.
            "max_queue_seconds": 600,
        } | settings
        self.log = folder / "server.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = self.launch(env=clean_env(**self.settings), stdout=subprocess.PIPE, stderr=log)
        self.greeting = self.process.stdout.readline()
        match = re.match(r"Listening on (http://\S+):", self.greeting)
        assert match, self.log.read_text()
        self.url = match[1]

    def launch(self, **options) -> Forked | subprocess.Popen:
        return Forked("serve", **options)

    def client(self, **arguments) -> JsonClient:
        return JsonClient(self.url, **arguments)

    def push(self, tasks: "Mapping[str, Task]") -> None:
        """Uploads tasks by their names, with the server's own key where it has one."""
        with self.client(api_key=self.settings.get("api_keys")) as client:
            for name, task in tasks.items():
                client.push(name, task.file)

    def connect(self) -> socket.socket:
        """A connection on which nothing has been sent."""
        where = urlsplit(self.url)
        return socket.create_connection((where.hostname, where.port), timeout=180)

    def begin(self, method, path, part, length, media_type="application/json") -> socket.socket:
        """A connection on which a part of a request's body has been sent."""
        connection, fields = self.connect(), f"Content-Length: {length}\r\nContent-Type: {media_type}\r\n"
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode() + part)
        return connection

    def refuses(self) -> bool:
        """Whether nobody listens any more."""
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return True
        return False

    def metric(self, name) -> float:
        """The sum of all series that begin so; asked with the server's own key, where it has one."""
        with self.client(api_key=self.settings.get("api_keys")) as client:
            lines = client.send("GET", "/metrics").text.splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)]
        # A series with labels is there when something has been counted in it.
        assert values or "{" in name, f"no metric begins with {name}"
        return sum(values)

    def in_progress(self) -> float:
        """Requests being answered, the one that asks included."""
        return self.metric("onebert_http_requests_in_progress ")

    def children(self) -> set[int]:
        """The processes that it has started."""
        return children(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def stop(self, by=signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(180)
        self.process.stdout.close()
        return code

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self.process.returncode is None:
            code = self.stop()
            assert kind or code == 0, self.log.read_text()


def children(pid: int) -> set[int]:
    """The processes that a process has started."""
    output = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [map(int, line.split()) for line in output.splitlines()]
    return {child for child, parent in pairs if parent == pid}


@cache
def spec(folder=None):
    """What a delta may touch on the tiny base, or another one."""
    return load_base(str(folder or tiny_base())).spec


@cache
def tokenizer(folder=None):
    return AutoTokenizer.from_pretrained(folder or tiny_base())


class Task:
    """One random delta for the tiny base, or another: its file, and the plain Hugging Face model with its weights."""

    def __init__(self, kind="bitfit", pooling="mean", labels=3, seed=0, folder=None, **manifest) -> None:
        self.folder = folder
        names = labels if isinstance(labels, list) else [f"label {i}" for i in range(labels)]
        self.tensors = far_delta(spec(folder), kind, pooling, len(names), seed)
        facts = {"labels": names, "max_length": MAX_LENGTH, "method": kind}
        self.manifest = manifest_for(spec(folder), pooling) | facts | manifest

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.folder or tiny_base(), self.tensors, self.manifest["pooling"])

    @property
    def file(self) -> bytes:
        return dumps(Delta(parse_manifest(self.manifest), self.tensors))

    def logits(self, text, text_pair=None) -> np.ndarray:
        options = {"truncation": True, "max_length": self.manifest["max_length"], "return_token_type_ids": True}
        if self.manifest["pooling"] == "siamese":
            first, other = (tokenizer(self.folder)(half, **options)["input_ids"] for half in (text, text_pair))
            return self.reference.logits(first + other, second=len(first)).numpy().astype(np.float64)
        encoded = tokenizer(self.folder)(text, text_pair, **options)
        return self.reference.logits(encoded["input_ids"], encoded["token_type_ids"]).numpy().astype(np.float64)

    def label(self, text, text_pair=None) -> str:
        return self.manifest["labels"][np.argmax(self.logits(text, text_pair))]

    def scores(self, text, text_pair=None) -> dict[str, float]:
        """Label -> probability, by softmax."""
        exponentials = np.exp(self.logits(text, text_pair))
        return dict(zip(self.manifest["labels"], exponentials / exponentials.sum(), strict=True))

    def with_golden(self, shift=0.0) -> "Task":
        """The same task with golden logits from the plain model; `shift` makes them wrong."""
        sequences = [[5, 9, 40, 3], [7] * 20, [11, 60, 100]]
        logits = [
            # Of a task on pairs the first half, and what is odd, is the first text.
            (self.reference.logits(ids, [0] * len(ids), second=-(-len(ids) // 2)).double() + shift).flatten().tolist()
            for ids in sequences
        ]
        self.manifest["golden"] = {"input_ids": sequences, "logits": logits}
        return self


def overflowing_on(text) -> Task:
    """A task of one answer, label 0, whose logits overflow on a text.

    The sequences that prove it at a load lie across its head. Both labels have the same weights, so the bias decides:
    it is far above what a processor's rounding makes of such logits.
    """
    size = spec().hidden_size
    pooled = Task("frozen", labels=size)
    pooled.tensors |= {"head.weight": np.eye(size, dtype=np.float32), "head.bias": np.zeros(size, np.float32)}
    probes = golden_tokens(load_base(str(tiny_base())), MAX_LENGTH, "mean")
    seen = np.stack([pooled.reference.logits(probe.input_ids, probe.type_ids).numpy().ravel() for probe in probes])
    here = pooled.logits(text).ravel()
    across = here - np.linalg.pinv(seen) @ (seen @ here)
    task = Task("frozen", labels=2)
    task.tensors["head.bias"][:] = [1e36, 0]
    task.tensors["head.weight"][:] = across * (1.05 * float(np.finfo(np.float32).max) / (across @ here))
    return task


def store(folder: Path, **tasks: "Task | list[Task]") -> list[VersionRecord]:
    """Puts tasks, or lists of versions of a task, into a store as another server would have left them; all records."""
    given = {name: task if isinstance(task, list) else [task] for name, task in tasks.items()}
    with Registry.open(folder) as registry:
        return [registry.add(name, loads(version.file))[0] for name, versions in given.items() for version in versions]


def assert_answers(result, expected: dict[str, float]) -> None:
    """The result's scores are the expected ones, best first."""
    assert result["scores"].keys() == expected.keys()
    np.testing.assert_allclose(
        [result["scores"][label] for label in expected], list(expected.values()), atol=1e-4, rtol=0
    )
    assert list(result["scores"].values()) == sorted(result["scores"].values(), reverse=True)
    assert result["label"] == next(iter(result["scores"]))
    assert result["score"] == result["scores"][result["label"]]


def wait_until(reached, seconds=180.0) -> None:
    """Asks again and again; the limit only ends a test that fails."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)
