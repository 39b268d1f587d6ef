"""OneBERT from Python: trains a delta, and classifies with it in this process or over HTTP (docs/guide/python.md).

Names are imported on first use: `import onebert` alone loads neither torch nor an HTTP library.
The errors are in `onebert.errors`.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING
from typing import Any as _Any

from onebert import errors as errors

if TYPE_CHECKING:
    from onebert.classifier import Classifier as Classifier
    from onebert.classifier import load as load
    from onebert.options import TrainOptions as TrainOptions
    from onebert.training import Trained as Trained
    from onebert.training import train as train
    from onebert_server.client import AsyncClient as AsyncClient
    from onebert_server.client import Client as Client
    from onebert_server.client import Input as Input
    from onebert_server.client import KeyQuotas as KeyQuotas
    from onebert_server.client import Result as Result
    from onebert_server.client import TargetFacts as TargetFacts
    from onebert_server.client import TaskResult as TaskResult
    from onebert_server.client import Wait as Wait
    from onebert_server.client import as_dict as as_dict

__version__ = version("onebert")

_OF_CLIENT = "AsyncClient Client Input KeyQuotas Result TargetFacts TaskResult Wait as_dict"
_MODULES = {
    **dict.fromkeys(("Classifier", "load"), "onebert.classifier"),
    "TrainOptions": "onebert.options",
    **dict.fromkeys(("Trained", "train"), "onebert.training"),
    **dict.fromkeys(_OF_CLIENT.split(), "onebert_server.client"),
}


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'onebert' has no attribute {name!r}")
    attribute = getattr(import_module(_MODULES[name]), name)
    globals()[name] = attribute
    return attribute


def __dir__() -> list[str]:
    return sorted([*_MODULES, "__version__", "errors"])
