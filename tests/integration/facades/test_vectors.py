"""Vectors of texts by a server's bases, at the routes of OpenAI and TEI; sentence-transformers computes the same."""

import asyncio
import base64
import json

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient, constants
from sentence_transformers import SentenceTransformer

from bases import tiny_base
from environments import python_environment
from sentences import saved_by_sentence_transformers
from servers import LAYOUTS, Server, Task

KEY = "key-of-the-vectors"
LONG = "please help my order is late and the parcel is broken " * 20
TEXTS = ["please help my order is late", "thank you!", LONG, "Größe 12 \u4f60\u597d", "a"]
CLOSE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Name of a base -> sentence-transformers' own model of it."""
    folder = tmp_path_factory.mktemp("bases")
    return {
        "unit-mean": saved_by_sentence_transformers(folder / "unit-mean", "bert", "mean", normalize=True),
        "plain-cls": saved_by_sentence_transformers(folder / "plain-cls", "mpnet", "cls", normalize=False),
        "folder": folder,
    }


@pytest.fixture(scope="module", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def web(request, tmp_path_factory, models):
    """A client of a server of three bases, the last one without files that say how it pools."""
    bases = ",".join(str(models["folder"] / name) for name in ("unit-mean", "plain-cls"))
    settings = {"base": f"{bases},{tiny_base('distilbert')}", "api_keys": KEY, "front_ends": request.param}
    with Server(tmp_path_factory.mktemp("vectors"), **settings) as server:
        server.push({"tone": Task(seed=1, folder=tiny_base())})
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=180) as client:
            yield client
    assert "Traceback" not in server.log.read_text()


def embeddings(web, model, texts, **arguments):
    answer = web.post("/v1/embeddings", json={"model": model, "input": texts, **arguments})
    assert answer.status_code == 200, answer.text
    return answer


def numbers(answer):
    return np.array([entry["embedding"] for entry in answer.json()["data"]])


@pytest.mark.parametrize("name", ["unit-mean", "plain-cls"])
def test_vectors_are_those_of_sentence_transformers(web, models, name):
    answer = embeddings(web, name, TEXTS)
    np.testing.assert_allclose(numbers(answer), models[name].encode(TEXTS), **CLOSE)
    tokens = models[name].tokenizer(TEXTS, truncation=True, max_length=models[name].max_seq_length)["input_ids"]
    count = sum(map(len, tokens))
    body = answer.json()
    assert body["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (body["object"], body["model"]) == ("list", name)
    assert [entry["index"] for entry in body["data"]] == list(range(len(TEXTS)))
    assert answer.headers["onebert-truncated"] == "1"


def test_vectors_of_many_texts_keep_their_order_beside_tasks(web, models):
    texts = [f"order {number} is late" for number in range(150)]

    async def together():
        async with httpx.AsyncClient(base_url=web.base_url, headers=web.headers, timeout=180) as client:
            tones = [client.post("/v1/tasks/tone/classify", json={"inputs": text}) for text in texts[:20]]
            vectors = client.post("/v1/embeddings", json={"model": "unit-mean", "input": texts})
            return await asyncio.gather(vectors, *tones)

    vectors, *tones = asyncio.run(together())
    np.testing.assert_allclose(numbers(vectors), models["unit-mean"].encode(texts), **CLOSE)
    tone = Task(seed=1, folder=tiny_base())
    for text, answer in zip(texts, tones, strict=False):
        assert answer.json()["results"][0]["scores"] == pytest.approx(tone.scores(text), abs=1e-4)


def test_a_cut_vector_has_length_one_in_any_encoding(web, models):
    whole = models["unit-mean"].encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
    cut = embeddings(web, "unit-mean", TEXTS, dimensions=8)
    np.testing.assert_allclose(numbers(cut), whole, **CLOSE)
    coded = embeddings(web, "unit-mean", TEXTS, dimensions=8, encoding_format="base64", user="someone").json()["data"]
    read = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in coded]
    np.testing.assert_array_equal(np.array(read), numbers(cut).astype("<f4"))


@pytest.mark.parametrize("name", ["unit-mean", "plain-cls"])
def test_tei_normalizes_unless_it_is_told_not_to(web, models, name):
    raw = SentenceTransformer(modules=[*models[name]][:2], device="cpu")
    vectors = web.post(f"/t/{name}/embed", json={"inputs": TEXTS, "normalize": False})
    np.testing.assert_allclose(vectors.json(), raw.encode(TEXTS), atol=2e-5)
    assert vectors.headers["onebert-truncated"] == "1"
    assert int(vectors.headers["x-compute-tokens"]) > 0
    body = web.post(f"/t/{name}/embed", json={"inputs": TEXTS[0], "truncate": False, "prompt_name": None}).json()
    np.testing.assert_allclose(body, raw.encode(TEXTS[:1], normalize_embeddings=True), **CLOSE)


def test_hugging_faces_client(web, models, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    client = InferenceClient(model=f"{web.base_url}/t/unit-mean/embed".replace("//t", "/t"), token=KEY, timeout=180)
    vectors = client.feature_extraction(TEXTS[0], normalize=True, truncate=True, encoding_format="float")
    np.testing.assert_allclose(vectors, models["unit-mean"].encode(TEXTS[:1]), **CLOSE)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "text-embedding-3-small", "input": "a"}, 404, "unit-mean, plain-cls"),
        ({"input": "a"}, 400, "name the base"),
        ({"model": "unit-mean", "input": [101, 102]}, 400, "input.0: must be a text"),
        ({"model": "unit-mean", "input": ["a"] * 1025}, 400, "1024"),
    ],
)
def test_refusals_of_openai(web, body, status, words):
    answer = web.post("/v1/embeddings", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_two_bases_in_one_request_are_refused(web):
    texts = {"input": "a"}
    refused = web.post("/t/unit-mean/v1/embeddings", json={"model": "plain-cls", **texts})
    assert refused.status_code == 400
    assert "names different bases" in refused.json()["error"]["message"]
    assert web.post("/t/text-embedding-3-small/v1/embeddings", json={"model": "unit-mean", **texts}).status_code == 404
    digest = web.get("/t/unit-mean/info").json()["model_sha"]
    # A client that must name a model may name any: the path has the base.
    for names in ({}, {"model": "unit-mean"}, {"model": digest}, {"model": "text-embedding-3-small"}):
        assert web.post("/t/unit-mean/v1/embeddings", json=names | texts).json()["model"] == "unit-mean"


def test_a_base_that_does_not_say_how_it_pools_is_refused(web):
    name = tiny_base("distilbert").name
    refused = web.post("/v1/embeddings", json={"model": name, "input": "a"})
    assert refused.status_code == 400
    assert f"{name} makes no vectors: it has no modules.json" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"inputs": LONG, "truncate": False}, 422, "Validation"),
        ({"inputs": "a", "prompt_name": "query"}, 422, "Validation"),
        ({"inputs": []}, 400, "Empty"),
    ],
)
def test_refusals_of_tei(web, body, status, kind):
    answer = web.post("/t/unit-mean/embed", json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind)


def test_vectors_have_quotas_and_scopes(web):
    def holder(**grant):
        key = web.post("/v1/keys", json={"name": "somebody", "tasks": ["none-*"], **grant}).json()["key"]
        body = {"model": "unit-mean", "input": ["a", "b"]}
        send = web.post
        return lambda: send("/v1/embeddings", json=body, headers={"Authorization": f"Bearer {key}"}).status_code

    once = holder(scopes=["classify"], quotas={"requests": 1e-6, "tokens": 1e-6})
    assert [once(), once()] == [200, 429]
    assert holder(scopes=["upload"])() == 403
    assert httpx.post(f"{web.base_url}/embed", json={"inputs": "a"}).status_code == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tasks/base:unit-mean/classify", {"inputs": "a"}),
        ("/v1/classify", {"items": [{"task": "base:unit-mean", "text": "a"}]}),
        ("/v1/fanout", {"text": "a", "tasks": ["base:unit-mean"]}),
        ("/t/base:unit-mean/predict", {"inputs": "a"}),
    ],
)
def test_a_base_is_no_task(web, path, body):
    embeddings(web, "unit-mean", "a")
    answer = web.post(path, json=body)
    assert answer.status_code == 422
    assert "'base:unit-mean' is not a name" in answer.text


@pytest.mark.slow
def test_openais_client(web, models):
    url, expected = str(web.base_url).rstrip("/"), models["unit-mean"].encode(TEXTS)
    seen = python_environment("openai").run("openai_vectors.py", url, KEY, "unit-mean", json.dumps(TEXTS))
    for vectors in seen["vectors"]:
        np.testing.assert_allclose(vectors, expected, **CLOSE)


@pytest.mark.slow
def test_teis_client(web, models):
    url, expected = str(web.base_url).rstrip("/"), models["unit-mean"].encode(TEXTS)
    seen = python_environment("tei").run("tei_vectors.py", url, KEY, "unit-mean", json.dumps(TEXTS))
    assert (seen["model_type"], seen["model_id"].rpartition("/")[2]) == ("embedding", "unit-mean")
    np.testing.assert_allclose(seen["vectors"], expected, **CLOSE)
