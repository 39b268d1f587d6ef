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
    # By the attributes that the SDK types, and one that it does not know.
    return [
        {
            "flagged": one.flagged,
            "harassment": one.categories.harassment,
            "graphic": one.category_scores.violence_graphic,
            "applied": one.category_applied_input_types.self_harm_intent,
            "categories": one.categories.model_dump(by_alias=True),
            "scores": one.category_scores.model_dump(by_alias=True),
            "spam": one.categories.spam,
        }
        for one in response.results
    ]


answer = client.moderations.create(model=task, input=texts)
print(
    json.dumps(
        {
            "model": answer.model,
            "id": answer.id,
            "results": results(answer),
            "async": results(asyncio.run(moderate_async())),
            "one": results(client.moderations.create(model=task, input=texts[0])),
            "parts": results(client.moderations.create(model=task, input=[{"type": "text", "text": texts[0]}])),
            "models": [model.model_dump() for model in client.models.list()],
            "model_card": client.models.retrieve(task).model_dump(),
            "wrong_key": refusal(
                lambda: openai.OpenAI(api_key="no", **given).moderations.create(model=task, input="a")
            ),
            "no_task": refusal(lambda: client.moderations.create(model="there-is-none", input="a")),
            "no_model": refusal(lambda: client.models.retrieve("there-is-none")),
            "image": refusal(
                lambda: client.moderations.create(
                    model=task, input=[{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
                )
            ),
        }
    )
)
