"""The image's steps in a clean folder, and a pod of deploy/kubernetes with what they give; no container engine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from bases import far_delta, manifest_for
from json_client import JsonClient
from kustomize import by_name, render
from onebert_encoder.base.base import load_base
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps
from onebert_store.file.manifest import parse_manifest
from pods import in_a_pod, needs_pods
from stages import needs_kernels

pytestmark = [pytest.mark.slow, needs_kernels, needs_pods]

ROOT = Path(__file__).parents[3]
KEY = "a key of this test alone"
# Folders of the image that its steps name.
PLACES = ("/dist", "/src")


def stages():
    """The instructions of each stage of the Dockerfile, comments left out: [word, rest]."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    # What stands before the first stage names the image of a later one.
    lines = text[text.index("\nFROM ") :].replace("\\\n", " ").splitlines()
    layers = []
    for word, _, rest in (line.partition(" ") for line in lines if line.strip()):
        if word == "FROM":
            layers.append([])
        layers[-1].append((word, rest.strip()))
    return layers


def arguments(word, stage):
    return [rest for name, rest in stage if name == word]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("image")


@pytest.fixture(scope="module")
def image(place):
    """An environment that the steps have installed into; it finds what the server depends on where these tests do."""
    building, running = stages()

    def moved(text):
        for name in PLACES:
            text = re.sub(rf"{name}(?=[/ \"']|$)", f"{place}{name}", text)
        return text

    folder = place / "venv"
    venv.create(folder, with_pip=True)
    [site] = folder.glob("lib/python*/site-packages")
    folders = [name for name in sys.path if name.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(folders), encoding="utf-8")
    copy_context(place / "src")
    [compile_] = arguments("RUN", building)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= dict(
        pair.split("=") for line in arguments("ARG", running) for pair in shlex.split(line) if "=" in pair
    )
    # The environment of these tests, whose packages the image finds, names the plug-in for agents.
    environment["EXTRAS"] += ",mcp"
    path = f"{folder}/bin:{environment['PATH']}"
    subprocess.run(moved(compile_), shell=True, check=True, cwd=place / "src", env=environment | {"PATH": path})

    # The first step installs what is found where these tests run; tests/unit/test_deploy.py has its list.
    # Users and folders of the system are the pod's, and `pip check` would look at packages of the tests.
    _, install = arguments("RUN", running)
    steps = re.sub(r"--mount=\S+", "", install).split("&&")
    installing = "&&".join(step for step in steps if step.split()[0] in ("pip", "case"))
    tools = place / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to(shutil.which("sh"))
    path = f"{folder}/bin:{tools}"
    subprocess.run(moved(installing), shell=True, check=True, cwd=place, env=environment | {"PATH": path})
    return folder


def copy_context(folder):
    """What the image is built from, by .dockerignore."""
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            source, target = ROOT / line[1:], folder / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)


class Pod:
    """The container of a layout; its user, its variables, its folders to write to."""

    def __init__(self, layout, image, place, **settings):
        """Settings stand for what the manifest takes from secrets and from the node."""
        manifests = by_name(render(ROOT / "deploy/kubernetes/overlays" / layout))
        spec = manifests["Deployment", "onebert"]["spec"]["template"]["spec"]
        [self.container] = spec["containers"]
        self.user = spec["securityContext"]["runAsUser"]
        self.image, self.place, self.settings = (
            image,
            place,
            {"ONEBERT_API_KEYS": KEY, "ONEBERT_THREADS": "1"} | settings,
        )
        self.folders = {mount["mountPath"]: place / mount["name"] for mount in self.container["volumeMounts"]}
        for folder in self.folders.values():
            folder.mkdir()

    def command(self, *command):
        """The command line that runs a command in the pod."""
        read = {self.image, Path(sys.base_prefix), *(Path(name) for name in sys.path if name.endswith("site-packages"))}
        root = self.place / f"root-{len(list(self.place.glob('root-*')))}"
        root.mkdir()
        return in_a_pod(command, self.user, root, sorted(read), self.folders)

    @contextmanager
    def serving(self):
        """Runs the image's command until the block ends: the server's address."""
        # Nobody waits for a balancer here; a front end puts its sockets where temporary files go.
        environment = self.environment(ONEBERT_PORT="0", ONEBERT_DRAIN_DELAY="0", ONEBERT_FRONT_ENDS="1")
        _, running = stages()
        [cmd] = arguments("CMD", running)
        program, *rest = json.loads(cmd)
        log = self.place / "log"
        with log.open("wb") as errors:
            command = self.command(self.image / "bin" / program, *rest)
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            greeting = process.stdout.readline()
            match = re.match(r"Listening on (http://\S+): .* native \(\w+\) kernels", greeting)
            assert match, greeting + log.read_text()
            yield match[1].replace("0.0.0.0", "127.0.0.1")
        finally:
            process.terminate()
            code = process.wait(180)
            process.stdout.close()
        text = log.read_text()
        assert code == 0, text
        assert "Read-only" not in text
        assert "WARNING" not in text

    def environment(self, **changed):
        """As the image and the manifest set it; no command is found but the image's own."""
        _, running = stages()
        variables = dict(pair.split("=") for line in arguments("ENV", running) for pair in shlex.split(line))
        variables |= {entry["name"]: entry["value"] for entry in self.container["env"] if "value" in entry}
        return (
            variables
            | self.settings
            | {"PATH": f"{self.image}/bin", "HOME": "/home/onebert", "LANG": "C.UTF-8"}
            | changed
        )


def delta():
    spec = load_base(None).spec
    tensors = far_delta(spec, "bitfit", "mean", 2, 0)
    return dumps(Delta(parse_manifest(manifest_for(spec, "mean") | {"labels": ["no", "yes"]}), tensors))


def test_a_pod_has_no_rights(image, tmp_path):
    """What the other tests prove depends on it."""
    pod = Pod("volume", image, tmp_path)
    check = (
        "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; touch /x /usr/x /etc/x; touch /tmp/x /data/x"
    )
    done = subprocess.run(pod.command("/bin/sh", "-c", check), capture_output=True, text=True, check=True)
    assert re.fullmatch(r"1000\nCapEff:\t0+\nCapBnd:\t0+\nNoNewPrivs:\t1\n", done.stdout)
    assert len(re.findall("Read-only file system", done.stderr)) == 3
    assert (pod.folders["/data"] / "x").stat().st_uid == pod.user


def probe(pod, url):
    for kind in ("startup", "liveness", "readiness"):
        asked = pod.container[f"{kind}Probe"]["httpGet"]
        assert httpx.get(url + asked["path"]).status_code == 200


def test_a_pod_of_the_image_starts_answers_and_stops(image, tmp_path):
    pod = Pod("volume", image, tmp_path)
    with pod.serving() as url, JsonClient(url, api_key=KEY) as client:
        probe(pod, url)
        client.push("tone", delta())
        [answer] = client.classify("tone", "good")["results"]
        assert set(answer["scores"]) == {"no", "yes"}
        # By a plug-in of the image.
        assert "/v1/bundle" in client.send("GET", "/openapi.json").json()["paths"]
    # Uploads alone are written; nothing had to be compiled or fetched.
    assert list(pod.folders["/data"].glob("blobs/**/*"))
    for name in ("/home/onebert", "/tmp"):
        assert [path for path in pod.folders[name].rglob("*") if not path.is_dir()] == []


def test_a_new_replica_has_all_versions(image, tmp_path, proxy, object_server, bucket_url):
    secrets = {"ONEBERT_REGISTRY": proxy.url.partition("?")[0], "ONEBERT_BLOBS": bucket_url} | object_server.environment
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    first, other = (Pod("replicas", image, tmp_path / name, **secrets) for name in ("one", "other"))
    with first.serving() as url, JsonClient(url, api_key=KEY) as client:
        probe(first, url)
        client.push("tone", delta())
        before = client.classify("tone", "good")
    with other.serving() as url, JsonClient(url, api_key=KEY) as client:
        assert client.classify("tone", "good") == before
