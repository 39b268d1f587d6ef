"""KServe's REST client, V1 and V2; URL, key, task, texts as JSON."""

import asyncio
import json
import sys

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

url, key, task, texts = *sys.argv[1:4], json.loads(sys.argv[4])


async def refusal(call):
    try:
        await call
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return None


def tensor(binary):
    if not binary:
        return InferInput("text", [len(texts)], "BYTES", texts)
    made = InferInput("text", [len(texts)], "BYTES")
    made.set_data_from_numpy(np.array(texts, dtype=object), binary_data=True)
    return made


async def main():
    headers = {"Authorization": f"Bearer {key}"}
    first, second = (InferenceRESTClient(RESTConfig(protocol=protocol)) for protocol in ("v1", "v2"))
    seen = {
        "predictions": await first.infer(url, {"instances": texts}, model_name=task, headers=headers),
        "ready": await first.is_model_ready(url, task, headers=headers),
        "no_task": await refusal(first.infer(url, {"instances": texts}, model_name="there-is-none", headers=headers)),
        "v2_ready": [
            await second.is_server_ready(url),
            await second.is_server_live(url),
            await second.is_model_ready(url, task, headers=headers),
        ],
    }
    for binary in (False, True):
        request = InferRequest(task, [tensor(binary)])
        answer = await second.infer(url, request, model_name=task, headers=dict(headers))
        outputs = {output.name: output.as_numpy().tolist() for output in answer.outputs if output.datatype != "BYTES"}
        seen["binary" if binary else "json"] = {"outputs": outputs, "model": answer.model_name}
    await first.close()
    await second.close()
    print(json.dumps(seen))


asyncio.run(main())
