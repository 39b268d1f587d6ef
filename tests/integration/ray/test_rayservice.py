"""The pods of the RayService without Kubernetes: restricted as there, with a token, told what KubeRay tells."""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from bases import tiny_base
from kustomize import by_name, render
from pods import in_a_pod, needs_pods
from ports import free_port
from ray_clusters import give_kernels
from servers import Task, assert_answers, clean_env, wait_until

# Beside other tests the pods take minutes to be ready.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), needs_pods]

ROOT = Path(__file__).parents[3]
SERVICE = by_name(render(ROOT / "plugins/onebert-ray/kubernetes"))["RayService", "onebert"]["spec"]
CLUSTER = SERVICE["rayClusterConfig"]
KEY, TOKEN = "a key of this test alone", "a-token-of-this-test-alone-" + 32 * "0"
TEXT = "the screen was broken"
# `ray`, as the image has it, with the packages of these tests.
RAY = f'#!/bin/sh\nexec {sys.executable} -m ray.scripts.scripts "$@"\n'


class Pod:
    """A pod of one of the cluster's groups: what is in the manifest, what KubeRay adds, and ports of this machine."""

    def __init__(self, group, folder, tools, **settings):
        spec = group["template"]["spec"]
        [self.container] = spec["containers"]
        self.user, self.folder, self.start = spec["securityContext"]["runAsUser"], folder, group["rayStartParams"]
        self.agent = free_port()
        self.tools = tools
        # /dev/shm is this machine's.
        mounts = [mount for mount in self.container["volumeMounts"] if mount["name"] != "shm"]
        self.volumes = {mount["mountPath"]: folder / mount["name"] for mount in mounts}
        for path in self.volumes.values():
            path.mkdir(parents=True)
        # The image has compiled kernels.
        home = self.volumes["/home/onebert"]
        (home / ".cache").mkdir()
        give_kernels(home / ".cache")
        for path in home.rglob("*"):
            os.chown(path, self.user, self.user)
        values = {entry["name"]: entry["value"] for entry in self.container["env"] if "value" in entry}
        self.env = clean_env(**settings) | values | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        self.env |= {"HOME": "/home/onebert", "LANG": "C.UTF-8", "PATH": f"{tools}:/usr/bin:/bin"}

    def run(self, *command, **options):
        """A process of a command in the pod."""
        sources = {ROOT, Path(sys.prefix), Path(sys.base_prefix), self.tools, self.tools.with_name("base")}
        read = sources | {Path(name) for name in sys.path if name.endswith("site-packages")}
        root = self.folder / f"root-{len(list(self.folder.glob('root-*')))}"
        root.mkdir()
        read = {cluster for cluster in read if not any(other in cluster.parents for other in read)}
        line = in_a_pod(command, self.user, root, sorted(read), self.volumes)
        return subprocess.Popen(line, env=self.env, **options)

    def ray_start(self, stack, **parameters):
        """Starts Ray on this node as KubeRay has it started, until the stack is closed."""
        given = (
            self.start | {"dashboard-agent-listen-port": self.agent, "metrics-export-port": free_port()} | parameters
        )
        words = [f"--{name}={value}" if value != "" else f"--{name}" for name, value in given.items()]
        log = stack.enter_context((self.folder / "log").open("wb"))
        command = ["/bin/bash", "-c", "--", f"ulimit -n 65536; ray start --block {' '.join(words)}"]
        process = self.run(*command, stdout=log, stderr=log)

        def end():
            process.terminate()
            process.wait(300)

        stack.callback(end)
        return process


@pytest.fixture
def place(tmp_path_factory):
    # Ray's sockets have long names.
    return tmp_path_factory.mktemp("r")


@pytest.fixture
def cluster(place, proxy):
    """A head and a worker that serve by the configuration of the manifest; the worker's pod, and its address."""
    tools = place / "tools"
    tools.mkdir()
    (tools / "ray").write_text(RAY)
    (tools / "ray").chmod(0o755)
    settings = {"registry": proxy.url.partition("?")[0], "api_keys": KEY, "dtype": "float32"}
    # Readable to the pods' user.
    settings["base"] = shutil.copytree(tiny_base(), place / "base")
    for path in (settings["base"], *settings["base"].iterdir()):
        path.chmod(0o755)
    settings |= {"host": "127.0.0.1", "port": free_port(), "data_dir": "/data", "max_queue_seconds": 600}
    gcs, dashboard = free_port(), free_port()
    head = Pod(CLUSTER["headGroupSpec"], place / "head", tools, **settings)
    worker = Pod(CLUSTER["workerGroupSpecs"][0], place / "worker", tools, **settings)
    # Its end is no part of the test.
    head.env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"
    with ExitStack() as stack:
        head.ray_start(stack, head="", port=gcs, **{"dashboard-port": dashboard, "ray-client-server-port": free_port()})
        wait_until(lambda: healthy(head), seconds=240)
        process = worker.ray_start(stack, address=f"127.0.0.1:{gcs}")
        wait_until(lambda: healthy(worker), seconds=240)
        yield worker, process, f"http://127.0.0.1:{dashboard}", f"http://127.0.0.1:{settings['port']}"


def status(url, **options):
    try:
        return httpx.get(url, timeout=10, **options).status_code
    except httpx.TransportError:
        return None


def healthy(pod):
    """As its liveness probe asks."""
    return status(f"http://127.0.0.1:{pod.agent}{pod.container['livenessProbe']['httpGet']['path']}") == 200


def test_pods_serve_by_the_configuration_and_leave_in_peace(cluster):
    worker, process, dashboard, url = cluster
    config = yaml.safe_load(SERVICE["serveConfigV2"])
    config["applications"][0]["args"] |= {"replicas": 1, "cpus": 1}
    applications = f"{dashboard}/api/serve/applications/"
    refused = httpx.put(applications, json=config, timeout=180)
    assert refused.status_code in (401, 403)
    taken = httpx.put(applications, json=config, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=180)
    assert taken.status_code == 200, taken.text

    ready = f"{url}{worker.container['readinessProbe']['httpGet']['path']}"
    wait_until(lambda: status(ready) == 200, seconds=900)
    task = Task()
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=180) as web:
        octets = {"Content-Type": "application/octet-stream"}
        assert web.put("/v1/tasks/task/versions", content=task.file, headers=octets).status_code == 201

        def asked():
            return web.post("/v1/tasks/task/classify", json={"inputs": TEXT})

        assert_answers(asked().json()["results"][0], task.scores(TEXT))
        process.terminate()
        # A front end that leaves says so, and answers everything that still comes.
        answer = asked()
        while answer.headers.get("connection") != "close":
            assert answer.status_code == 200
            answer = asked()
        assert answer.status_code == 200
        assert status(ready) == 503
    # When nothing is left on the node, Ray ends it, and the container with it.
    process.wait(180)
    assert status(ready) is None
