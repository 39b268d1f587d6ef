"""FastAPI before transformers pipelines, one for each task; arguments: MODELS PORT THREADS DTYPE TASKS.

As the documentation of pipelines advises for web servers: one thread computes, and takes all requests that wait. Those
for one task are one batch.
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline
from transformers.utils import logging

models, port, threads, dtype, tasks = sys.argv[1:]
logging.set_verbosity_error()
torch.set_num_threads(int(threads))
pipelines = {
    f"task-{task}": pipeline(
        "text-classification", f"{models}/task-{task}", dtype=getattr(torch, dtype), device="cpu", top_k=None
    )
    for task in range(int(tasks))
}
waiting: asyncio.Queue[tuple[str, str, asyncio.Future[Any]]] = asyncio.Queue()


class Request(BaseModel):
    """The body of a request."""

    inputs: str


@torch.inference_mode()
def classify_batch(task: str, texts: list[str]) -> list[Any]:
    """The answers of one task."""
    return pipelines[task](texts, batch_size=len(texts), truncation=True)


async def compute() -> None:
    """Forever takes all requests that wait and answers them, task by task."""
    while True:
        taken = [await waiting.get()]
        while not waiting.empty():
            taken.append(waiting.get_nowait())
        for task in dict.fromkeys(name for name, _, _ in taken):
            mine = [(text, future) for name, text, future in taken if name == task]
            answers = await asyncio.to_thread(classify_batch, task, [text for text, _ in mine])
            for (_, future), answer in zip(mine, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


@asynccontextmanager
async def lifespan(_: FastAPI) -> Any:
    """The computing task lives as long as the server."""
    computing = asyncio.create_task(compute())
    yield
    computing.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/classify/{task}")
async def classify(task: str, request: Request) -> list[dict[str, str | float]]:
    """Scores of all labels."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    await waiting.put((task, request.inputs, future))
    return await future


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
