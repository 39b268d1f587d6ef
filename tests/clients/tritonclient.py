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


def text(name="text", values=texts, binary=True):
    tensor = np.array(values, dtype=object)
    given = triton.InferInput(name, tensor.shape, "BYTES")
    given.set_data_from_numpy(tensor, binary_data=binary)
    return given


def words(array):
    return [word.decode() for word in array.ravel().tolist()]


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
        answer = await client.infer(
            task, [text(binary=False)], headers=dict(headers), model_version=version, request_id="seven"
        )
        return read(answer)


top = [triton.InferRequestedOutput("scores", binary_data=True, class_count=2)]
print(
    json.dumps(
        {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model": client.get_model_metadata(task, headers=dict(headers)),
            "binary": read(infer(text())),
            "json": read(infer(text(binary=False))),
            "async": asyncio.run(infer_async()),
            "top": words(infer(text(), outputs=top).as_numpy("scores")),
            "pairs": read(infer([text(), text("text_pair", texts[::-1])])),
            "late": refusal(lambda: infer(text(), timeout=1)),
            "no_task": refusal(lambda: infer(text(), "there-is-none")),
            "parameter": refusal(lambda: infer(text(), parameters={"temperature": 2})),
        }
    )
)
