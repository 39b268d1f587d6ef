"""The estimate of what a batch takes: it follows the machine, and no single batch leads it astray."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bases import loaded
from onebert_encoder.maths.batch import pack
from onebert_server.engine import host as module
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.host import Speed, measure_speed


@given(st.floats(0.15, 100.0), st.lists(st.integers(1, 8192), min_size=200, max_size=200))
def test_the_estimate_comes_to_what_batches_take(slower, batches):
    speed, real = Speed(0.001, 1e-4), lambda tokens: slower * (0.001 + tokens * 1e-4)
    for tokens in batches:
        speed.observe(tokens, real(tokens))
    assert speed.seconds(1000) == pytest.approx(real(1000), rel=0.05)


def test_slow_batches_do_not_become_smaller():
    """Else smaller ones would be slower still for each token, and so on down to the smallest."""
    speed = Speed(0.25e-3, 27e-6)
    before = speed.worthwhile(8192)
    for _ in range(100):
        tokens = speed.worthwhile(8192)
        speed.observe(tokens, 5e-3 + tokens * 27e-6)
    assert speed.worthwhile(8192) == before


@pytest.mark.parametrize(
    ("start", "per_token", "least", "most"),
    [
        (0.25e-3, 27e-6, 512, 560),  # MiniLM-L6 on two cores, one call for a forward pass
        (2.0e-3, 30e-6, 2200, 2400),  # the same, an operation at a time
        (1.0e-3, 0.4e-6, 8192, 8192),  # BERT-base on a GPU
        (0.02e-3, 0.25e-6, 8192, 8192),  # a device that costs hardly anything beside its tokens, and is fast
        (0.02e-3, 250e-6, 50, 60),  # the same, slow: a larger batch would only keep others waiting
        (1.0e-3, 550e-6, 60, 70),  # MiniLM-L6 on two cores with AVX2 alone
        (1.0e-3, 0.0, 8192, 8192),
    ],
)
def test_a_batch_is_as_small_as_costs_no_capacity(start, per_token, least, most):
    speed = Speed(start, per_token)
    tokens = speed.worthwhile(8192)
    assert least <= tokens <= most
    assert start <= 0.03 * speed.seconds(tokens) or tokens == 8192
    assert speed.worthwhile(40) == 40, "what the operator allows bounds it all the same"


def test_a_process_that_was_halted_once_has_not_become_slow():
    speed = Speed(0.001, 1e-4)
    speed.observe(1000, 3600.0)
    assert speed.seconds(1000) < 2 * 0.101


@given(st.floats(0.002, 1.0), st.integers(512, 8192))
def test_a_batch_that_is_cut_to_a_time_is_estimated_to_take_it(seconds, most):
    speed = Speed(0.001, 1e-4)
    tokens = speed.tokens_within(seconds, most)
    assert tokens <= most
    assert speed.tokens_within(0.0005, most) == 10, "never so few that a batch is mostly what it costs beside them"
    # The one is the inverse of the other up to rounding.
    assert speed.seconds(tokens) <= seconds * (1 + 1e-9)
    assert tokens == most or speed.seconds(tokens + 1) > seconds * 0.999


def test_before_anything_is_measured_nothing_is_bounded():
    assert Speed().seconds(8192) == 0
    assert Speed().tokens_within(0.1, 8192) == 8192
    Speed().observe(100, 1.0)


@pytest.mark.parametrize("long", [0.0, 10.0], ids=["slow", "fast"])
def test_a_machine_of_any_speed_is_measured(monkeypatch, long):
    """A slow one, too, by more than its smallest batch, which is all overhead."""
    monkeypatch.setattr(module, "_LONG", long)
    base, sizes = loaded(), []
    monkeypatch.setattr(
        module, "pack", lambda base, inputs, rows: sizes.append(len(inputs.ids)) or pack(base, inputs, rows)
    )
    with torch.inference_mode():
        speed = measure_speed(base, Bank(base).rows)
    assert 0 < speed.seconds(16) <= speed.seconds(1024) <= speed.seconds(100_000)
    assert max(sizes) == (8192 if long else 256)


def test_batches_that_take_no_time_never_make_the_estimate_nothing():
    speed = Speed(0.001, 1e-4)
    for _ in range(1000):
        speed.observe(512, 1e-9)
    assert speed.seconds(1000) >= 0.01
