"""OneBERT from Python: trains a delta, and classifies with it in this process or over HTTP (docs/guide/python.md).

Names are imported on first use: `import onebert` alone loads neither torch nor an HTTP library.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from onebert_store.errors import OneBertError

if TYPE_CHECKING:
    from onebert.classifier import Classifier, load
    from onebert.training import Trained, train
    from onebert_server.client import AsyncClient, Client, Result, TaskResult, as_dict

__all__ = [
    "AsyncClient",
    "Classifier",
    "Client",
    "OneBertError",
    "Result",
    "TaskResult",
    "Trained",
    "__version__",
    "as_dict",
    "load",
    "train",
]

__version__ = version("onebert")

_MODULES = {
    **dict.fromkeys(("Classifier", "load"), "onebert.classifier"),
    **dict.fromkeys(("Trained", "train"), "onebert.training"),
    **dict.fromkeys(("AsyncClient", "Client", "Result", "TaskResult", "as_dict"), "onebert_server.client"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'onebert' has no attribute {name!r}")
    attribute = getattr(import_module(_MODULES[name]), name)
    globals()[name] = attribute
    return attribute


def __dir__() -> list[str]:
    return sorted(__all__)
