"""The state of a run: what a step does to every leaf, beside PyTorch's plain optimizer."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import take_step
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State
from onebert_training.methods.table import METHODS

# Every kind of method, and low-rank differences of the MLP, whose matrices are of two shapes.
TRAINED = (*(name for name in METHODS if name not in ("head", "reinit")), "lora:r=2,targets=all", "reinit+bitfit")
ARGUMENTS = {"random": ":0.2%", "random-rows": ":1%", "random-cols": ":1%", "random-bias": ":0.5%"} | {
    "spafit": ":0-1-II,r=2",
    "diff-pruning": ":0.5%",
    "adapter": ":4",
    "lora-xs": ":r=3",
}


@pytest.mark.parametrize("method", TRAINED)
def test_steps_are_those_of_the_plain_optimizer(base, data, method):
    """The gradients of some leaves are not laid out in memory as the leaves are, which a fused optimizer can miss."""
    settings = replace(Settings(), method=method + ARGUMENTS.get(method, ""), learning_rate=2e-2, max_steps=40)
    run = Run(TaskInputs(base, data, settings.max_length), settings, "tone")
    state = State(run.init_values())
    twins = {name: leaf.detach().clone(memory_format=torch.contiguous_format) for name, leaf in state.leaves.items()}
    plain = torch.optim.AdamW(twins.values(), weight_decay=0.0, foreach=False, fused=False)
    # The first step finds B = 0, so that A has no gradient before the second.
    for step in range(3):
        take_step([(run, state)])
        head_rate, rate = run.learning_rates_at(step)
        assert head_rate == rate
        plain.param_groups[0]["lr"] = rate
        for name, twin in twins.items():
            twin.grad = state.leaves[name].grad.clone(memory_format=torch.contiguous_format)
        plain.step()
        for name, leaf in state.leaves.items():
            # Both compute Adam's formula in float32; its quotient is of order 1, so rounding is some 1e-7 of the rate.
            torch.testing.assert_close(leaf.detach(), twins[name], rtol=1e-5, atol=1e-6, msg=name)
        # A gradient that is scaled in place is scaled once.
        spans = sorted((leaf.grad.data_ptr(), leaf.grad.nbytes) for leaf in state.leaves.values())
        assert all(begin + size <= after for (begin, size), (after, _) in pairwise(spans))
    # What is measured has no noise of a step: neither dropout nor the gates of pruning.
    first, again = (run.evaluate(run.model(state.averaged), "validation") for _ in range(2))
    assert first.loss == again.loss
