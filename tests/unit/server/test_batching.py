"""The batch choice against a brute-force twin."""

from hypothesis import given
from hypothesis import strategies as st

from onebert_server.batching import take_batch


@given(st.lists(st.integers(1, 600), max_size=60), st.integers(1, 2000))
def test_takes_the_longest_prefix_that_fits_and_never_nothing(lengths: list[int], budget: int) -> None:
    fitting = [count for count in range(len(lengths) + 1) if sum(lengths[:count]) <= budget]
    assert take_batch(iter(lengths), budget) == min(max(fitting[-1], 1), len(lengths))
