"""Packages that plug in a façade, a blob store and a redactor, used by the installed program.

docs/reference/plugins.md has the contracts that it keeps.
"""

import subprocess

import httpx
import pytest
from cryptography.fernet import Fernet

from onebert_store.blobs.staging import digest_of
from onebert_store.registry.dialects.sqlite import SqliteDatabase
from onebert_store.samples.store import open_samples
from plugin_packages import write_package
from servers import ONEBERT, Server, Task, clean_env
from stores import feedback_of

FACADE = '''
from onebert_server.answering.gateway import Wanted
from onebert_server.facades.facade import Facade, Listing, Question, json_reply
from onebert_server.facades.facade import predicted
from onebert_server.http.decoding import QuestionBody

class Ask(QuestionBody):
    """A text."""

    text: str

async def best(call):
    ref = call.task()
    [label] = await call.ask(Wanted([ref]), [call.body.text], lambda _, one: predicted(one).label)
    return json_reply({"label": label})

async def labels(look):
    """The labels of a task."""
    version = await look.version()
    return json_reply({"labels": version.known_facts.labels})

def worded(fault):
    return fault.status, {"sorry": fault.sentence}

FACADE = Facade("Best", worded, [Question("/best", Ask, best)], [Listing("/best/labels", labels)])
'''


REDACTOR = """
def shout(text):
    return text.upper()
"""

BLOBS = '''
from datetime import UTC, datetime
from pathlib import Path

from onebert_store.blobs.staging import digest_of
from onebert_store.blobs.staging import BlobInfo
from onebert_store.blobs.store import BlobStore
from onebert_store.errors import StoreCorrupt
from onebert_store.file.format import MAX_FILE_BYTES

class Boxes(BlobStore):
    """Each blob in a file BOX/DIGEST.box."""

    def __init__(self, box, staging):
        staging.mkdir(parents=True, exist_ok=True)
        super().__init__(staging, MAX_FILE_BYTES)
        self._box = box

    def put(self, data):
        digest = digest_of(data)
        self._path(digest).write_bytes(data)
        return digest

    def get_local(self, digest):
        return self.get(digest)

    def delete(self, digest):
        self._path(digest).unlink(missing_ok=True)

    def sync(self):
        pass

    def blobs(self):
        for path in self._box.glob("*.box"):
            found = path.stat()
            yield BlobInfo(path.stem, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def _commit(self, staged, digest):
        self.put(staged.read_bytes())

    def _unverified(self, digest):
        if not self._path(digest).exists():
            raise StoreCorrupt("the box lacks it")
        yield self._path(digest).read_bytes()

    def _path(self, digest):
        return self._box / f"{digest}.box"

def open_boxes(address, may_make):
    box = Path(address.blobs.removeprefix("box:"))
    if may_make:
        box.mkdir(exist_ok=True)
    return Boxes(box, address.folder / "staging")
'''


GROUPS = {
    "onebert.facades": {"best": "their_facade:FACADE"},
    "onebert.blobs": {"box": "their_blobs:open_boxes"},
    "onebert.redactors": {"shout": "their_redactor:shout"},
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment variables by which a program finds the package."""
    modules = {"their_facade": FACADE, "their_blobs": BLOBS, "their_redactor": REDACTOR}
    return {"PYTHONPATH": str(write_package(tmp_path_factory.mktemp("package"), "theirs", GROUPS, **modules))}


def run(*arguments, env, **settings):
    return subprocess.run(
        [ONEBERT, *arguments], env=clean_env(**settings) | env, capture_output=True, text=True, check=False
    )


class Plugged(Server):
    """The installed program with a package."""

    def __init__(self, folder, package, **settings):
        self._package = package
        super().__init__(folder, **settings)

    def launch(self, env, **options):
        return subprocess.Popen([ONEBERT, "serve"], env=env | self._package, text=True, **options)


@pytest.mark.slow
def test_a_server_answers_by_its_facade_and_keeps_files_in_its_blob_store(installed, tmp_path):
    """Behind a front end, which asks the façade's question; the engine's process answers the listing."""

    task, box = Task(seed=1), tmp_path / "box"
    key = Fernet.generate_key().decode()
    settings = {"blobs": f"box:{box}", "front_ends": 1, "samples_key": key, "redactor": "shout"}
    with Plugged(tmp_path, installed, **settings) as server, httpx.Client(timeout=180) as web:
        web.base_url = server.url
        server.push({"tone": task})
        text = "please help, my order is late"
        scores = task.scores(text)
        answer = web.post("/t/tone/best", json={"text": text})
        assert (answer.status_code, answer.json()) == (200, {"label": max(scores, key=scores.get)})
        assert web.get("/t/tone/best/labels").json() == {"labels": task.manifest["labels"]}
        failed = web.post("/best", json={"text": text})
        assert (failed.status_code, failed.json().keys()) == (422, {"sorry"})
        assert web.get("/openapi.json").json()["paths"]["/best"]["post"]["tags"] == ["Best"]
        assert 'route="/t/{task}/best"' in web.get("/metrics").text
        assert web.get("/v1/tasks/tone/versions/1/delta").content == task.file
        given = {"task": "tone", "text": text, "label": "label 0"}
        web.put("/v1/tasks/tone/samples", json={"share": 1.0})
        assert web.post("/v1/feedback", json={"data": [given]}).json()["data"][0]["text_kept"]
    with open_samples(SqliteDatabase(tmp_path / "data/registry.sqlite3"), [key]) as samples:
        assert [sample.texts for sample in feedback_of(samples, "tone")] == [(text.upper(),)]
    digest = digest_of(task.file)
    assert {path.name: path.read_bytes() for path in box.iterdir()} == {f"{digest}.box": task.file}
    store = {"data_dir": tmp_path / "data", "blobs": f"box:{box}"}
    assert run("store", "check", env=installed, **store).returncode == 0
    (box / f"{digest}.box").unlink()
    assert run("store", "check", env=installed, **store).returncode == 1
