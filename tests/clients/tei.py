"""tei-client; URL, key, task, texts as JSON."""

import asyncio
import json
import sys

from tei_client.clients.http_client import HttpClient

url, key, task, texts = *sys.argv[1:4], json.loads(sys.argv[4])

client = HttpClient(f"{url}/t/{task}", headers={"Authorization": f"Bearer {key}"})


def plain(results):
    return [{score.label: score.score for score in result.scores} for result in results]


seen = {
    "healthy": client.health(),
    "info": client.info().model_dump(mode="json"),
    "batch": plain(client.classify(texts)),
    "pair": plain(client.classify([texts[:2]])),
    "async": plain(asyncio.run(client.async_classify(texts))),
}
print(json.dumps(seen))
