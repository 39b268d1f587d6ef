"""The parts of a base that a delta may change; the encoder makes it, a delta's checks read it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BaseSpec:
    """The shapes of one base, by its Hugging Face parameter names without the model prefix.

    Attributes:
        name: Hub id or folder name, for people; the digest identifies the base.
        digest: `sha256:…` over weights, tokenizer and the relevant configuration.
        max_length: tokens, special tokens included.
        poolings: the supported ones of `cls`, `mean`, `siamese`, `pooler`.
        parameters: bias and LayerNorm parameters that `delta.<name>` may add to, with shapes.
        modules: linear modules that `lora_A.<name>` and `lora_B.<name>` may change, with (out, in).
        symbols: the papers' symbol of each parameter and of each module's weight, e.g. `b_q`, `W_q`.
    """

    name: str
    digest: str
    model_type: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_length: int
    num_parameters: int
    poolings: tuple[str, ...]
    parameters: Mapping[str, tuple[int, ...]]
    modules: Mapping[str, tuple[int, int]]
    symbols: Mapping[str, str]
