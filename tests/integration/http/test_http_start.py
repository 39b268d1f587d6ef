"""A server that starts: it answers at its address at once, says how far it is, and can be stopped."""

import os
import re
import signal
import socket
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch

from bases import tiny_base
from forked import Forked
from onebert_server.run.serve import bind
from onebert_store.errors import InvalidSettings
from ports import free_port
from servers import LAYOUTS, ONEBERT, Server, clean_env, wait_until


@contextmanager
def held_up(folder, start, **settings):
    """A server whose start waits for whoever opens the other end of a pipe in place of its store's lock."""
    data, port = folder / "data", free_port()
    data.mkdir()
    os.mkfifo(data / "lock")
    given = {"base": tiny_base(), "dtype": "float32", "threads": 1, "port": port, "data_dir": data} | settings
    with (
        (folder / "log").open("wb") as log,
        start(env=clean_env(**given), stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            wait_until(lambda: _answers(port))
            yield process, f"http://127.0.0.1:{port}", data / "lock"
        finally:
            process.kill()


def _answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("hidden", [False, True], ids=["as it is", "GPUs hidden"])
def test_auto_takes_a_gpu_where_there_is_one_and_the_cpu_otherwise(tmp_path, monkeypatch, hidden):
    """Whether there is one, the driver says, not the library that the server asks."""
    there_is_one = Path("/dev/nvidia0").exists() and torch.version.cuda is not None
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with Server(tmp_path, device="auto") as server, server.client() as client:
        device = client.base()["device"]
    assert re.fullmatch(r"cuda(:0)?" if there_is_one and not hidden else "cpu", device)


@pytest.mark.parametrize("front_ends", **LAYOUTS)
def test_it_listens_while_it_loads_and_says_how_far_it_is(tmp_path, front_ends):
    program = partial(subprocess.Popen, [ONEBERT, "serve"], text=True)
    with held_up(tmp_path, program, front_ends=front_ends) as (process, url, lock):
        assert httpx.get(f"{url}/healthz").json() == {"status": "alive"}
        wait_until(lambda: "store: 0 of 1" in httpx.get(f"{url}/startupz").json()["detail"])
        for path in ("/startupz", "/readyz", "/v1/tasks", "/v1/tasks/task/classify", "/metrics"):
            answer = httpx.get(url + path)
            assert (answer.status_code, answer.json()["code"]) == (503, "starting")
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert int(answer.headers["Retry-After"]) >= 1
            assert answer.headers["Connection"] == "close"
        with lock.open("rb"):
            greeting = process.stdout.readline()
        assert re.match(rf"Listening on {url}: \S+, float32 on cpu, \w+ kernels, 0 tasks\n", greeting)
        assert httpx.get(f"{url}/startupz").json() == {"status": "started"}
        assert httpx.get(f"{url}/readyz").json()["status"] == "ready"
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0


@pytest.mark.parametrize("front_ends", **LAYOUTS)
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_start_that_hangs_ends_when_it_is_told_to(tmp_path, by, front_ends):
    with held_up(tmp_path, partial(Forked, "serve"), front_ends=front_ends) as (process, url, _):
        wait_until(lambda: "store" in httpx.get(f"{url}/startupz").json()["detail"])
        process.send_signal(by)
        assert process.wait(180) == 0
        assert process.stdout.read() == ""


def test_a_host_name_is_bound_at_every_address_that_it_stands_for(monkeypatch):
    """As `localhost` does where there is IPv6: two addresses, and both of them answer at one port."""
    ours = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.1", "127.0.0.2")]
    nobodys = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [nobodys, *ours])
    sockets = bind("twice", 0)
    names = [listener.getsockname() for listener in sockets]
    assert [name[0] for name in names] == ["127.0.0.1", "127.0.0.2"]
    assert len({name[1] for name in names}) == 1
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [nobodys])
    with pytest.raises(InvalidSettings, match="not an address of this machine"):
        bind("nowhere", 0)
    for listener in sockets:
        listener.close()
