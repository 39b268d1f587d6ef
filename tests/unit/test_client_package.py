"""`onebert-client`: a wheel of the client alone, which needs nothing but its two dependencies."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "api" / "client"

IMPORT = """
import sys
class Refusing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"torch", "numpy", "pydantic", "fastapi", "onebert", "onebert_encoder"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refusing())
sys.path.insert(0, sys.argv[1])
import onebert_server.client, onebert_store.errors
for one in (onebert_server.client, onebert_store.errors):
    assert one.__file__.startswith(sys.argv[1]), one.__file__
with onebert_server.client.Client("http://127.0.0.1:1") as client:
    try:
        client.tasks()
    except onebert_store.errors.OneBertError as error:
        print(type(error).__name__)
"""


def test_the_wheel_of_the_client_needs_neither_torch_nor_the_server(tmp_path):
    (wheel,) = WheelBuilder(str(CLIENT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    command = [sys.executable, "-c", IMPORT, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ServerUnreachable", done.stderr


def test_its_version_and_bounds_are_those_of_the_package():
    whole, client = (
        tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"] for folder in (ROOT, CLIENT)
    )
    assert client["version"] == whole["version"]
    assert set(client["dependencies"]) <= set(whole["dependencies"])
