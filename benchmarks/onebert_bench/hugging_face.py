"""Hugging Face's model as most people run it: batches padded to their longest text, and a linear head on the mean."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from onebert_encoder.base.base import Base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.text.tokens import Tokens


class Padded:
    """A base's own model, with scaled-dot-product attention, and a head.

    Attributes:
        model: which a caller may wrap or freeze.
    """

    def __init__(
        self, base: Base, name: str | None = None, dtype: torch.dtype = torch.float32, labels: int = 2
    ) -> None:
        source = find_base(name or DEFAULT_BASE)
        self._tokenizer = AutoTokenizer.from_pretrained(source)
        self.model: nn.Module = AutoModel.from_pretrained(source, dtype=dtype, attn_implementation="sdpa")
        self.model.to(base.device)
        self.head = nn.Linear(base.config.hidden_size, labels).to(base.device)

    def inputs(self, texts: Sequence[Tokens]) -> Mapping[str, Tensor]:
        """The arguments of the model: padded ids, segments and the attention mask."""
        rows = {"input_ids": [text.input_ids for text in texts]}
        if any(any(text.type_ids) for text in texts):  # some models take no segments
            rows["token_type_ids"] = [text.type_ids for text in texts]
        padded: Mapping[str, Tensor] = self._tokenizer.pad(rows, return_tensors="pt").to(self.head.weight.device)
        return padded

    def logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """[texts, labels]."""
        mask = inputs["attention_mask"]
        hidden = self.model(**inputs).last_hidden_state.float()
        logits: Tensor = self.head((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        return logits
