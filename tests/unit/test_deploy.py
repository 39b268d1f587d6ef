"""What an image is built from holds every package that the wheel needs."""

import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_images_context_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    needed |= {
        "plugins",
        "pyproject.toml",
        "hatch_build.py",
        "constraints.txt",
        *project["project"]["license-files"],
        project["project"]["readme"],
    }
    folders = [
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    ]
    assert {name for name in needed if not any(f"{name}/".startswith(f"{folder}/") for folder in folders)} == set()


def stages() -> tuple[str, str]:
    """The Dockerfile's two stages: what builds the wheel, and what runs it."""
    _, building, running = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    return building, running


def runs(stage: str) -> list[str]:
    """The shell commands of a stage, without their mounts."""
    lines = re.sub(r"^ *#.*\n", "", stage, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [re.sub(r"--mount=\S+ +", "", line.removeprefix("RUN ")) for line in lines if line.startswith("RUN ")]


@pytest.mark.parametrize("extras", ["minilm,postgresql,s3,samples,oidc,otel", "ray"])
def test_the_layer_of_dependencies_asks_for_those_of_the_project(extras: str, tmp_path: Path) -> None:
    dependencies, _ = runs(stages()[1])
    script = dependencies.partition(" && ")[0].replace("/tmp/", f"{tmp_path}/").replace("/needs/", f"{ROOT}/")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "EXTRAS": extras}
    subprocess.run(["sh", "-c", script], check=True, env=environment)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in extras.split(","):
        wanted += project["optional-dependencies"][extra]
    assert (tmp_path / "needs.txt").read_text().splitlines() == wanted


def test_the_image_installs_the_plugins_of_this_repository_by_its_extras() -> None:
    _, running = stages()
    core = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = ROOT.glob("plugins/*/pyproject.toml")
    plugins = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    assert plugins
    extras = core["optional-dependencies"]
    for plugin in plugins:
        assert f"--no-index --no-deps /dist/{plugin['name'].replace('-', '_')}-*.whl" in running.replace(
            "/dist/onebert-*-manylinux_*.whl ", ""
        )
        bound = ">=0.1,<0.2"
        assert (plugin["version"], f"onebert{bound}" in plugin["dependencies"]) == (core["version"], True)
        assert any(f"{plugin['name']}{bound}" in extra for extra in extras.values())
        # They are installed without their dependencies, which the core or an extra of the image has.
        here = core["dependencies"] + extras["ray"] + extras["mcp"] + [f"onebert{bound}"]
        assert set(plugin["dependencies"]) <= set(here)
    for name in ("ray", "mcp"):
        case = f'case ",$EXTRAS," in *,{name},*) pip install --no-cache-dir --no-index --no-deps /dist/onebert_{name}-'
        assert case in running


def test_the_image_is_healthy_while_its_port_is_ready(tmp_path: Path) -> None:
    [check] = re.findall(r"^HEALTHCHECK .*? CMD (\[.*\])$", stages()[1], re.MULTILINE)
    _, *arguments = json.loads(check)
    assert "ONEBERT_PORT=8000 " in stages()[1]

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def run(port: int) -> int:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env={"ONEBERT_PORT": str(port)}, check=False, capture_output=True).returncode

    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        threading.Thread(target=server.serve_forever).start()
        assert run(server.server_port) == 0
        server.shutdown()
    assert run(server.server_port) == 1


def test_the_unit_runs_as_the_user_that_the_page_makes() -> None:
    unit = (ROOT / "deploy/onebert.service").read_text(encoding="utf-8")
    page = (ROOT / "docs/guide/operations.md").read_text(encoding="utf-8")
    [user], [program] = (
        re.findall(r"^User=(.+)$", unit, re.MULTILINE),
        re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE),
    )
    [state] = re.findall(r"ONEBERT_DATA_DIR=(\S+)", unit)
    assert f"useradd --system --home-dir {Path(state).parent} --shell /usr/sbin/nologin {user}\n" in page
    assert f"--uid {user} " in page
    assert f"ONEBERT_DATA_DIR={state} {program} store check" in page
    assert "EnvironmentFile=/etc/onebert.env\n" in unit


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_has_no_finding() -> None:
    subprocess.run(["hadolint", ROOT / "deploy/Dockerfile"], check=True)


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    here = {"agents", "ray-serve", "semantic-router"}
    named = [
        *project["dependencies"],
        *(requirement for extra, names in extras.items() if extra not in here for requirement in names),
    ]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    names = {
        requirement.partition(";")[0].split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip()
        for requirement in named
    }
    assert {name for name in names if name not in pinned} <= {"onebert"}
