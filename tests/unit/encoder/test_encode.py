"""A forward pass makes tensors of the batch's size, however many tasks are resident."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bases import far_row, loaded
from batches import packed
from onebert_encoder.maths import encode as encoder
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.text.tokens import Tokens

TOKENS, TASKS = 3, 200


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that an operation makes; views do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.numbers = max(self.numbers, out.numel())
        return out


def test_a_scaled_row_does_not_copy_the_scales_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operation by operation; one call for all of it gathers nothing."""
    monkeypatch.setattr(encoder, "choose_forward", lambda *_: None)
    base = loaded()
    rows = stack_rows(base, [far_row(base, "scale", seed=seed) for seed in range(TASKS)])
    batch = packed(base, [Tokens([5, 6, 7], [0] * TOKENS)], [3])
    with torch.inference_mode():
        encode(base, rows, batch)  # the first time kernels are checked on tensors of their own
        with Largest() as largest:
            encode(base, rows, batch)
    # The widest that a layer computes is the MLP's, of the tokens and the filling behind them.
    assert 0 < largest.numbers <= len(batch.word) * 3 * base.config.intermediate_size
    assert largest.numbers < rows.scales["inner"][:, 0].numel()
