"""Arrays that are uploaded in one buffer come out unchanged, whatever their dtypes, shapes and order."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from onebert_encoder.layout.upload import upload, upload_at_once

CPU = torch.device("cpu")
DTYPES = st.sampled_from(["bool", "int32", "int64", "float32"])
SHAPES = arrays_of.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=7)


@given(st.lists(DTYPES.flatmap(lambda dtype: arrays_of.arrays(dtype, SHAPES)), max_size=6))
def test_arrays_come_out_of_one_buffer_as_they_went_in(arrays: list[np.ndarray]) -> None:
    named = dict(enumerate(arrays))
    for moved in (upload(named, CPU), upload_at_once(named, CPU)):
        assert list(moved) == list(named)
        for key, array in named.items():
            np.testing.assert_array_equal(moved[key].numpy(), array)
            assert str(moved[key].dtype) == f"torch.{array.dtype}"


def test_arrays_of_one_buffer_begin_where_a_gpu_loads_widely() -> None:
    moved = upload_at_once({i: np.zeros(1 + i, dtype=np.bool_) for i in range(20)}, CPU)
    start = min(tensor.data_ptr() for tensor in moved.values())
    assert all((tensor.data_ptr() - start) % 16 == 0 for tensor in moved.values())
