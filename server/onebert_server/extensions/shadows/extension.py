"""Versions that compute an alias's questions after another one has answered, and are compared with it."""

from contextlib import ExitStack

from onebert_server.extensions.shadows import routes
from onebert_server.extensions.shadows.metrics import ShadowCounts
from onebert_server.extensions.shadows.shadows import Shadows
from onebert_server.run.extension import Extension
from onebert_server.runtime import Runtime


def _open(runtime: Runtime, _: ExitStack) -> Shadows:
    shadows = Shadows(runtime.admission, runtime.workers, runtime.directory, runtime.metrics.answers)
    runtime.hooks.shadowed.append(shadows.compare)
    runtime.metrics.registry.register(ShadowCounts(shadows, runtime.settings.task_metrics))
    return shadows


EXTENSION = Extension(_open, [routes.router])
