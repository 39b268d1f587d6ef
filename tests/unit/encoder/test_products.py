"""Products with packed weights against double precision, where a weight is larger than what stays near a core."""

import pytest
import torch

from onebert_encoder.compute.kernels.products import load_products
from stages import draw, needs_int8, needs_kernels

pytestmark = needs_kernels

# Inputs of which four panels, what a thread takes at a time, are a whole block on matrix registers and a part of one.
INPUTS = {torch.float32: 1040, torch.bfloat16: 2080, torch.int8: 4160}
# Relative to the product's own size: of the rounding of its sums, of its result, and of its factors to 8 bits.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.int8: 0.02}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.int8, marks=needs_int8)])
@pytest.mark.parametrize("tokens", [1, 16, 33, 70, 300])
def test_a_large_weight_is_multiplied_whole_and_each_token_by_itself(dtype: torch.dtype, tokens: int) -> None:
    products, into = load_products("cpu", dtype), INPUTS[dtype]
    of_tokens = torch.bfloat16 if dtype == torch.int8 else dtype
    x, weight = draw(tokens, into, dtype=of_tokens), draw(200, into, dtype=torch.float32, seed=1).to(of_tokens)
    packed = products.pack(weight)
    got = products.multiply(x, packed)
    want = x.double() @ weight.double().T
    assert ((got.double() - want).norm(dim=1) / want.norm(dim=1)).max() < TOLERANCE[dtype]
    assert torch.equal(got[-1:], products.multiply(x[-1:], packed))
