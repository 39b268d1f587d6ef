"""OpenAI's SDK: embeddings as it asks for them by itself (base64), as numbers, and asynchronously."""

import asyncio
import json
import sys

import openai

url, key, base, texts = *sys.argv[1:4], json.loads(sys.argv[4])
given = {"api_key": key, "base_url": f"{url}/v1", "max_retries": 0}
client = openai.OpenAI(**given)


async def asked():
    async with openai.AsyncOpenAI(**given) as asynchronous:
        return await asynchronous.embeddings.create(model=base, input=texts)


answers = [
    client.embeddings.create(model=base, input=texts),
    client.embeddings.create(model=base, input=texts, encoding_format="float"),
    asyncio.run(asked()),
]
print(json.dumps({"vectors": [[row.embedding for row in answer.data] for answer in answers]}))
