"""FastAPI before classifiers without an encoder, one for each task; arguments: KIND VECTORS MODEL PORT TASKS.

Each task loads the same trained model anew, except the vectors, which all share. A text takes less than a millisecond,
so it is classified where its request is read: a thread would cost more.
"""

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from static_models import load_model

kind, vectors, model, port, tasks = sys.argv[1:]
models = {f"task-{task}": load_model(kind, Path(vectors), Path(model)) for task in range(int(tasks))}


class Request(BaseModel):
    """The body of a request."""

    inputs: str


app = FastAPI()


@app.post("/classify/{task}")
async def classify(task: str, request: Request) -> list[dict[str, str | float]]:
    """Scores of all labels."""
    [scores] = models[task]([request.inputs])
    return [{"label": str(label), "score": float(score)} for label, score in enumerate(scores)]


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
