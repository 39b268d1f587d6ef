"""Façades and blob stores of plug-ins in one process: what they may share, and that each mistake is one clear line."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from onebert_server.access.keys import KeyRing
from onebert_server.facades import listings, plugged, routes, table
from onebert_server.http.auth import is_open
from onebert_server.run.app import control_routers, create_app
from onebert_server.settings import Settings
from onebert_store.errors import InvalidSettings
from onebert_store.registry.store import StoreAddress, open_store
from plugin_packages import write_package
from tenants import Asker, tenants_runtime

FACADES = '''
from onebert_server.facades.facade import Facade, Listing, Question
from onebert_server.http.decoding import QuestionBody

class Ask(QuestionBody):
    """One text."""

    text: str

async def answer(call):
    raise NotImplementedError

async def show(look):
    """The first line."""
    raise NotImplementedError

def made(name, questions=(), listings=()):
    return Facade(name, lambda fault: (fault.status, {"no": fault.sentence}), questions, listings)

def has_text(given):
    return isinstance(given, dict) and "text" in given

new = made("New", [Question("/new", Ask, answer)], [Listing("/new", show)])
again = made("Again", [Question("/new", Ask, answer, claims=has_text)])
shared = made("Shared", [Question(path, Ask, answer, claims=has_text) for path in ("/classify", "/v1/classify")])
greedy = made("Greedy", [Question("/v1/classify", Ask, answer)])
predict = made("Predict", [Question("/predict", Ask, answer, claims=has_text)])
base = made("Base", [], [Listing("/v1/base", show)])
keys = made("Keys", [Question("/v1/keys", Ask, answer, claims=has_text)])
number = 5
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with entry points of one group, beside what is installed or (`alone`) in its place."""
    caches = plugged.plugged_in, table.facades, routes._claimants, routes._forms, routes.answering

    def forget():
        for cach in caches:
            cach.cache_clear()

    def write(group, package="plugin", **names):
        entries = {name: facade if ":" in facade else f"plugged_facades:{facade}" for name, facade in names.items()}
        folder = write_package(tmp_path / package, package, {group: entries}, plugged_facades=FACADES)
        monkeypatch.syspath_prepend(folder)
        forget()

    yield write
    forget()


def refused(call):
    with pytest.raises(InvalidSettings) as caught:
        call()
    assert "\n" not in caught.value.detail
    return caught.value.detail


GONE = "the façade 'gone' is unavailable: "
TWICE = "onebert-semantic-router and plugin both have it"
OURS = "which is a route of the server's own"


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ({"gone": "no_such_module:it"}, f"{GONE}ModuleNotFoundError: No module named"),
        ({"number": "number"}, "the façade 'number' is unavailable: it is a int, not a Facade"),
        ({"semantic-router": "new"}, f"the façade 'semantic-router' is unavailable: {TWICE}"),
        ({"a": "new", "b": "again"}, "the façades 'New' and 'Again' both have POST /new"),
        ({"predict": "predict"}, "the façades 'TEI' and 'Predict' both have POST /predict"),
        ({"greedy": "greedy"}, "the façades 'Greedy' and 'vLLM Semantic Router' both have POST /v1/classify"),
        ({"base": "base"}, f"the façade 'Base' has GET /v1/base, {OURS}"),
        ({"keys": "keys"}, f"the façade 'Keys' has POST /v1/keys, {OURS}"),
    ],
)
def test_a_facade_that_does_not_fit_is_one_line(install, names, line):
    install("onebert.facades", **names)
    assert refused(lambda: listings.showing(control_routers())).startswith(line)


def test_facades_share_paths_that_bodies_tell_apart(install):
    install("onebert.facades", new="new", shared="shared")
    listings.showing(control_routers())
    assert {"/new", "/t/{task}/new", "/v1/bundle"} <= routes.facade_paths()
    names = {path: [claimant.facade.name for claimant in claimants] for path, claimants in routes._claimants().items()}
    assert names["/classify"] == ["vLLM", "vLLM Semantic Router", "Shared"]
    assert names["/v1/classify"] == ["vLLM Semantic Router", "Shared"]


def test_the_document_has_a_facade_whose_answers_have_any_form(install):
    install("onebert.facades", shared="shared")
    runtime = SimpleNamespace(keys=KeyRing({b"digest": "ci"}), settings=Settings())
    document = json.loads(create_app(runtime).control.document())
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert ("security" in operation) is not is_open({"path": path, "method": method.upper()})


def test_without_plugins_the_list_of_models_is_the_one_of_openai(tmp_path, monkeypatch, install):
    monkeypatch.setattr(plugged, "installed", lambda group: {})
    install("onebert.nothing")
    assert not {"/v1/bundle", "/t/{task}/v1/bundle"} & routes.facade_paths()
    with tenants_runtime(tmp_path / "data") as runtime:
        ask = Asker(runtime).ask
        listed = asyncio.run(ask("key-of-acme", "GET", "/v1/models"))
        health = asyncio.run(ask("key-of-acme", "GET", "/t/acme-tone/health"))
    fields = {"id", "object", "created", "owned_by", "root"}
    assert listed.json().keys() == {"object", "data"}
    assert listed.json()["data"]
    assert all(model.keys() == fields for model in listed.json()["data"])
    assert json.loads(health.content)["status"] == "ready"


def test_blob_stores_of_plugins_are_known_by_their_schemes(tmp_path, install):
    install("onebert.blobs", broken="no_such_module:it", twice="new")
    install("onebert.blobs", package="other", twice="new")

    def opened(blobs):
        with open_store(StoreAddress(f"sqlite:///{tmp_path}/registry", blobs, tmp_path)):
            raise AssertionError

    reason = "ModuleNotFoundError: No module named 'no_such_module'"
    assert refused(lambda: opened("broken:x")) == f"the blob store 'broken' is unavailable: {reason}"
    reason = "other and plugin both have it; uninstall one"
    assert refused(lambda: opened("twice:x")) == f"the blob store 'twice' is unavailable: {reason}"
    for blobs in ("else:x", "twice", "broken"):
        line = refused(lambda blobs=blobs: opened(blobs))
        assert line.startswith("ONEBERT_BLOBS is a URL that begins with file: or s3: or ")
        assert {"broken:", "twice:"} <= set(line.split())
