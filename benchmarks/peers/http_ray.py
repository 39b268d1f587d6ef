"""Ray Serve, multiplexed and batched, with transformers; arguments: MODELS PORT THREADS DTYPE DEVICE TASKS.

One replica has all threads, and Serve cuts its batches by model.
"""

import signal
import sys
from typing import Any

import ray
import torch
from ray import serve
from starlette.requests import Request
from transformers import pipeline

models, port, threads, dtype, device, tasks = sys.argv[1:]
GPUS = int(device.startswith("cuda"))


@serve.deployment(
    num_replicas=1, max_ongoing_requests=256, ray_actor_options={"num_cpus": int(threads), "num_gpus": GPUS}
)
class Classifier:
    """All tasks of one process."""

    def __init__(self) -> None:
        torch.set_num_threads(int(threads))

    @serve.multiplexed(max_num_models_per_replica=int(tasks))
    async def get_model(self, name: str) -> Any:
        """Loads a task's model when it is first asked for."""
        return pipeline(
            "text-classification", f"{models}/{name}", dtype=getattr(torch, dtype), device=device, top_k=None
        )

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0)
    async def classify(self, texts: list[str]) -> list[Any]:
        """Answers a batch of texts that wait for one model."""
        model = await self.get_model(serve.get_multiplexed_model_id())
        with torch.inference_mode():
            return model(texts, batch_size=len(texts), truncation=True)

    async def __call__(self, request: Request) -> Any:
        """Scores of all labels."""
        return await self.classify((await request.json())["inputs"])


ray.init(
    num_cpus=int(threads) + 1,
    num_gpus=GPUS,
    include_dashboard=False,
    log_to_driver=False,
    object_store_memory=80 * 2**20,
)
serve.start(http_options={"host": "127.0.0.1", "port": int(port)}, logging_config={"enable_access_log": False})
serve.run(Classifier.bind())
signal.sigwait({signal.SIGTERM, signal.SIGINT})
serve.shutdown()
ray.shutdown()
