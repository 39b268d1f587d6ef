"""Triton's HTTP client, sync and async, with binary tensors and without; URL, key, task, version, texts as JSON."""

import asyncio
import json
import sys

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as asynchronous

url, key, task, version, texts = *sys.argv[1:5], json.loads(sys.argv[5])
address = url.removeprefix("http://")
headers = {"Authorization": f"Bearer {key}"}
client = triton.InferenceServerClient(address)


def text(name="text", values=texts, shape=None, binary=True):
    tensor = np.array(values, dtype=object).reshape(shape or [len(values)])
    given = triton.InferInput(name, tensor.shape, "BYTES")
    given.set_data_from_numpy(tensor, binary_data=binary)
    return given


def words(array):
    return [one.decode() for one in array.ravel().tolist()]


def read(result):
    return {
        "scores": result.as_numpy("scores").tolist(),
        "labels": words(result.as_numpy("label")),
        "truncated": result.as_numpy("truncated").tolist(),
        "head": {name: value for name, value in result.get_response().items() if name != "outputs"},
    }


def refusal(call):
    try:
        call()
    except triton.InferenceServerException as error:
        return {"status": error.status(), "message": error.message()}
    return None


def infer(given, model=task, **options):
    return client.infer(model, given if isinstance(given, list) else [given], headers=dict(headers), **options)


async def infer_async():
    async with asynchronous.InferenceServerClient(address) as client:
        one = await client.infer(
            task, [text(binary=False)], headers=dict(headers), model_version=version, request_id="seven"
        )
        return read(one)


top = [triton.InferRequestedOutput("scores", binary_data=True, class_count=2)]
top_in_json = [triton.InferRequestedOutput("scores", binary_data=False, class_count=2)]
print(
    json.dumps(
        {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": client.is_model_ready(task, headers=dict(headers)),
            "version_ready": client.is_model_ready(task, version, headers=dict(headers)),
            "none_ready": client.is_model_ready("there-is-none", headers=dict(headers)),
            "server": client.get_server_metadata(headers=dict(headers)),
            "model": client.get_model_metadata(task, headers=dict(headers)),
            "binary": read(infer(text())),
            "json": read(infer(text(binary=False))),
            "columns": read(infer(text(shape=[len(texts), 1]))),
            "async": asyncio.run(infer_async()),
            "top": words(infer(text(), outputs=top).as_numpy("scores")),
            "top_in_json": infer(text(), outputs=top_in_json).get_output("scores"),
            "pairs": read(infer([text(), text("text_pair", texts[::-1])])),
            "in_time": read(infer(text(), timeout=600_000_000, priority=3)),
            "late": refusal(lambda: infer(text(), timeout=1)),
            "no_task": refusal(lambda: infer(text(), "there-is-none")),
            "no_key": refusal(lambda: client.infer(task, [text()])),
            "parameter": refusal(lambda: infer(text(), parameters={"temperature": 2})),
            "sequence": refusal(lambda: infer(text(), sequence_id=3)),
            "output": refusal(lambda: infer(text(), outputs=[triton.InferRequestedOutput("logits")])),
        }
    )
)
