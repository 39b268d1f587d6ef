"""A server of an added base, in an environment without the Hugging Face libraries for models."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bases import tiny_base
from onebert_encoder.adding.adding import add_base
from servers import ONEBERT, Server, Task, assert_answers, clean_env

pytestmark = pytest.mark.slow

# Each import of one raises ModuleNotFoundError, as where it is not installed.
WITHOUT = "import sys; sys.modules.update(transformers=None, huggingface_hub=None)"
TEXT = "my order is late"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return add_base(str(tiny_base()), "tiny", tmp_path_factory.mktemp("bases") / "tiny").folder


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The variables of a process that cannot import the libraries."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(WITHOUT)
    return {"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


class Lean(Server):
    """An installed server without the libraries."""

    variables: dict[str, str]

    def launch(self, env, **options):
        program = [ONEBERT, "serve", "--front-ends", self.settings["front_ends"]]
        return subprocess.Popen(list(map(str, program)), env=env | self.variables, text=True, **options)


@pytest.mark.parametrize("front_ends", [0, 1])
def test_a_server_of_a_base_folder_answers_without_transformers(tmp_path, folder, without, front_ends):
    task = Task(labels=["good", "bad", "ugly"], seed=1).with_golden()
    Lean.variables = without
    with Lean(tmp_path, base=folder, front_ends=front_ends) as server, server.client() as client:
        assert client.base()["name"] == "tiny"
        client.push("mood", task.file)
        [result] = client.classify("mood", TEXT)["results"]
        assert_answers(result, task.scores(TEXT))


@pytest.mark.parametrize("spoil", ["overwritten", "cut"])
def test_files_that_change_under_a_server_change_none_of_its_answers(tmp_path, folder, spoil):
    folder = shutil.copytree(folder, tmp_path / "base")
    tasks = {kind: Task(kind, seed=2).with_golden() for kind in ("bitfit", "lora-xs", "sparse")}
    with Server(tmp_path, base=folder, front_ends=1) as server, server.client() as client:
        server.push({"before": Task(seed=1).with_golden()})
        answers = client.classify("before", TEXT)["results"]
        for path in folder.iterdir():
            if spoil == "cut":
                os.truncate(path, 8)
            else:
                with path.open("r+b") as file:
                    file.write(b"?" * path.stat().st_size)
        assert client.classify("before", TEXT)["results"] == answers
        # Folded and proved now.
        server.push(tasks)
        for name, task in tasks.items():
            assert_answers(client.classify(name, TEXT)["results"][0], task.scores(TEXT))


def run(without, *arguments):
    done = subprocess.run(
        [ONEBERT, *map(str, arguments)], env=clean_env() | without, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_base_folder_is_checked_and_any_other_is_refused_without_transformers(tmp_path, folder, without):
    code, out, err = run(without, "base", "check", folder)
    assert (code, err) == (0, "")
    assert out.startswith("tiny is whole, sha256:")
    for command in (["base", "add", tiny_base()], ["serve", "--port", "0", "--base", tiny_base()]):
        code, out, err = run(without | {"ONEBERT_DATA_DIR": str(tmp_path)}, *command)
        assert (code, out) == (1, "")
        assert err.splitlines()[-1] == (
            f"error: base {tiny_base()}: it is read by transformers, which is not installed; "
            "`onebert base add` needs it once"
        )
    code, _, err = run(without | {"HOME": str(tmp_path)}, "base", "add", "nobody/has-this-model")
    assert code == 1
    assert err.startswith("error: base 'nobody/has-this-model' is not a folder, not in the Hugging Face cache")
    assert not Path(tmp_path, ".local").exists()
