"""What façades cost over the native route: one client, one kept connection, in turns, medians of one run.

    onebert serve &
    python benchmarks/serving/facades.py http://127.0.0.1:8000 TASK

The task is a single_label one that takes one text and names its positive labels.
"""

import http.client
import json
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

ROUNDS, WARMING = 500, 50
TEXT = "please help, my order is late and nobody answers the phone"


def requests(task: str) -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Name -> path and body of one text for the task."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
    return {
        "native": (f"/v1/tasks/{task}/classify", {"inputs": TEXT}),
        "Hugging Face": (f"/t/{task}", {"inputs": TEXT, "parameters": {}}),
        "TEI": (f"/t/{task}/predict", {"inputs": TEXT}),
        "vLLM": ("/classify", {"model": task, "input": TEXT}),
        "KServe v1": (f"/v1/models/{task}:predict", {"instances": [TEXT]}),
        "Open Inference": (f"/v2/models/{task}/infer", {"inputs": [tensor]}),
        "OpenAI": ("/v1/moderations", {"model": task, "input": TEXT}),
        "LiteLLM": (f"/t/{task}/beta/litellm_basic_guardrail_api", {"input_type": "request", "texts": [TEXT]}),
        "FMS detectors": (f"/t/{task}/api/v1/text/contents", {"contents": [TEXT]}),
        "Semantic Router": ("/v1/classify", {"model": task, "input": TEXT}),
    }


def main(url: str, task: str) -> None:
    """Asks and prints."""
    web = http.client.HTTPConnection(urlsplit(url).netloc)
    asked = {name: (path, json.dumps(body).encode()) for name, (path, body) in requests(task).items()}
    seconds: dict[str, list[float]] = {name: [] for name in asked}
    for number in range(WARMING + ROUNDS):
        # Each turn goes through all of them, so that whatever the machine does meanwhile meets them alike.
        for name, (path, body) in asked.items():
            began = time.perf_counter()
            web.request("POST", path, body, {"Content-Type": "application/json"})
            answer = web.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise SystemExit(f"{name}: {answer.status} {content.decode()}")
            if number >= WARMING:
                seconds[name].append(time.perf_counter() - began)
    native = statistics.median(seconds["native"])
    print("| route | ms, p50 | over native |\n|---|---|---|")
    for name, measured in seconds.items():
        median = statistics.median(measured)
        print(f"| {name} | {1000 * median:.3f} | {100 * (median / native - 1):+.1f} % |")


if __name__ == "__main__":
    main(*sys.argv[1:])
