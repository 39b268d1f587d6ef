"""Makes versions of the examples that clients send, by a process beside the server."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from onebert_server.extensions.trainer import routes
from onebert_server.extensions.trainer.settings import Settings
from onebert_server.extensions.trainer.trainer import Trainer
from onebert_server.extensions.trainer.worker import Worker
from onebert_server.run.extension import Extension
from onebert_server.runtime import Runtime


def _open(runtime: Runtime, opened: ExitStack) -> Trainer | None:
    if not runtime.settings_of(Settings).trainer:
        return None
    worker = Worker(runtime.settings.base[0] if runtime.settings.base else None)
    thread = ThreadPoolExecutor(1, "onebert-trainer")
    # In the order back: the end of the process ends what the thread waits for.
    opened.callback(thread.shutdown)
    opened.callback(worker.close)
    return Trainer(worker, thread, runtime)


EXTENSION = Extension(_open, [routes.router])
