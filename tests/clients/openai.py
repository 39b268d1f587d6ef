"""OpenAI's SDK, typed, sync and async: moderations, models, and its errors; URL, key, task, texts as JSON."""

import asyncio
import json
import sys

import openai

url, key, task, texts = *sys.argv[1:4], json.loads(sys.argv[4])
given = {"base_url": f"{url}/v1", "max_retries": 0}
client = openai.OpenAI(api_key=key, **given)


def refusal(call):
    try:
        call()
    except openai.APIStatusError as error:
        return {"kind": type(error).__name__, "status": error.status_code, "body": error.body}
    return None


async def moderate_async():
    async with openai.AsyncOpenAI(api_key=key, **given) as asynchronous:
        return await asynchronous.moderations.create(model=task, input=texts)


def results(response):
    # By an attribute that the SDK types, and all that it does not.
    return [
        {
            "harassment": result.categories.harassment,
            "categories": result.categories.model_dump(by_alias=True),
            "scores": result.category_scores.model_dump(by_alias=True),
        }
        for result in response.results
    ]


answer = client.moderations.create(model=task, input=texts)
print(
    json.dumps(
        {
            "model": answer.model,
            "results": results(answer),
            "async": results(asyncio.run(moderate_async())),
            "models": [model.id for model in client.models.list()],
            "no_task": refusal(lambda: client.moderations.create(model="there-is-none", input="a")),
        }
    )
)
