"""The entries that are measured in process, OneBERT and its peers, in the order of the tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).parents[3] / "peers"
"""The scripts, which run in the peers' own environments."""


@dataclass(frozen=True)
class Entry:
    """One script and what it can do.

    Attributes:
        title: its name in tables and pictures.
        environment: name in `ENVIRONMENTS`.
        dtypes: the dtypes that it can compute in.
        cuda: whether it can run on a GPU, too.
        answers: whether it returns a task's logits, which are then checked.
    """

    title: str
    environment: str
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    cuda: bool = True
    answers: bool = True


# The keys are the names of the scripts in benchmarks/peers.
ENTRIES: Mapping[str, Entry] = {
    "floor": Entry("the matrix products alone", "ours", answers=False),
    "ours": Entry("OneBERT", "ours", ("float32", "bfloat16", "int8")),
    "transformers_padded": Entry("transformers, padded", "torch"),
    "transformers_sorted": Entry("transformers, sorted by length", "torch"),
    "transformers_compiled": Entry("transformers, torch.compile", "torch"),
    "transformers_swapped": Entry("transformers, a model a task", "torch"),
    "onnx_runtime": Entry("ONNX Runtime", "onnx", ("float32", "int8"), cuda=False),
    "open_vino": Entry("OpenVINO", "openvino", cuda=False),
    "sentence_head": Entry("sentence-transformers and a head", "torch"),
    "peft_mixed": Entry("peft, adapter_names", "torch"),
    "peft_swapped": Entry("peft, set_adapter", "torch"),
    "adapters_split": Entry("adapters, BatchSplit", "adapters"),
    "reference": Entry("each text alone in the merged model", "torch", ("float32",), cuda=False),
}
