"""tei-client's vectors; URL, key, base, texts as JSON."""

import json
import sys

from tei_client.clients.http_client import HttpClient

url, key, base, texts = *sys.argv[1:4], json.loads(sys.argv[4])

client = HttpClient(f"{url}/t/{base}", headers={"Authorization": f"Bearer {key}"})
info = client.info()
vectors = client.embed(texts, truncate=True)
print(json.dumps({"model_type": info.server_model_type, "model_id": info.server_model_id, "vectors": vectors}))
