"""Kept activations are those of Hugging Face's lower layers, are computed once, and do not change answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bases import Reference, tiny_base
from onebert_encoder.base.base import load_base
from onebert_training.fit import features
from onebert_training.fit.features import Inputs, predict
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import take_step
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State

LAYERS = 3
ENTRIES = [
    *(("spafit:0-1-II,r=2", pooling, 1) for pooling in ("mean", "cls", "pooler")),
    *(("frozen", pooling, LAYERS) for pooling in ("mean", "cls", "pooler")),
    ("bitfit:bp", "pooler", LAYERS),
]


def texts_of(base, count=40):
    words = ["the parcel was", "very bad and late", "good !", "which refund is there about an order ?"]
    texts = [" ".join(words[(i + j) % 4] for j in range(1 + i % 5)) for i in range(count)]
    return base.tokenizer.encode(texts, 50)


def make_run(inputs, method, pooling=None, **changes):
    return Run(inputs, Settings(method=method, pooling=pooling, learning_rate=1e-2, **changes), "tone")


def moved(run, steps=4):
    """Values a few steps away from the start."""
    state = State(run.init_values())
    for _ in range(steps):
        take_step([(run, state)])
    return state.values


def predictions(run, values, rows):
    with torch.no_grad():
        row = run.fold(run.base, values)
        return predict(run.base, row, rows)


@pytest.mark.parametrize("low", [1, 2, LAYERS])
def test_activations_are_the_hidden_states_of_the_plain_model(base, low):
    """Without the bias of the LayerNorm that made them, which `fold` adds where they are read."""
    texts = texts_of(base)
    model = Reference(tiny_base("bert"), {}, "mean").model
    taken = Inputs(base, texts).features(low, "none").take(range(len(texts)))
    for text, got in zip(texts, taken, strict=True):
        with torch.no_grad():
            ids, types = torch.tensor([text.input_ids]), torch.tensor([text.type_ids])
            hidden = model(ids, token_type_ids=types, output_hidden_states=True).hidden_states[low][0]
        torch.testing.assert_close(got, hidden - base.param("b_LN2", low - 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("method", "pooling", "low"), ENTRIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_and_losses_are_those_from_the_first_layer_on(data, method, pooling, low, dtype):
    base = load_base(str(tiny_base("bert")), dtype=dtype)
    run = make_run(TaskInputs(base, data, 40), method, pooling)
    assert run.plan.lowest_layer == low
    values = moved(run)
    above, whole = run.features("test"), run.inputs.splits["test"].features(0, run.pooling)
    assert (above.layers, whole.layers) == (range(low, LAYERS), range(LAYERS))
    logits, wanted = predictions(run, values, above), predictions(run, values, whole)
    # bfloat16: in another batch sums have another order, which may change the last of 8 bits in some layers.
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    np.testing.assert_allclose(np.stack(logits), np.stack(wanted), rtol=0, atol=tolerance)
    loss = run.objective.loss(list(map(torch.from_numpy, wanted)), run.targets["test"]).item()
    assert run.evaluate(run.model(values), "test").loss == pytest.approx(loss, abs=tolerance)


@pytest.mark.parametrize(("method", "pooling", "low"), ENTRIES)
def test_training_is_the_same_where_there_is_no_room_to_keep_anything(base, data, method, pooling, low, monkeypatch):
    keeping = moved(make_run(TaskInputs(base, data, 40), method, pooling), steps=6)
    monkeypatch.setattr(features, "MAX_KEPT_BYTES", 0)
    run = make_run(TaskInputs(base, data, 40), method, pooling)
    for name, value in moved(run, steps=6).items():
        torch.testing.assert_close(value, keeping[name], rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(("method", "pooling", "low"), ENTRIES)
def test_after_the_first_epoch_the_lower_layers_are_not_needed(data, method, pooling, low):
    base = load_base(str(tiny_base("bert")))
    run = make_run(TaskInputs(base, data, 40), method, pooling, batch_size=8)
    state = State(run.init_values())
    for _ in range(run.schedule.steps_per_epoch):
        take_step([(run, state)])
    # `fold` multiplies by the lower layers' weights; no pass goes through without their gains.
    base.layers[:low] = [replace(layer, g={}) for layer in base.layers[:low]]
    base.embeddings = None
    for _ in range(run.schedule.steps_per_epoch):
        take_step([(run, state)])
    # A run with another seed shares them, too: activations depend on data and base alone.
    other = make_run(run.inputs, method, pooling, seed=5)
    take_step([(other, State(other.init_values()))])


@pytest.mark.parametrize(
    ("method", "pooling", "drops"),
    [
        *(("frozen", "mean", False), ("frozen", "pooler", False), ("bitfit:bp", "pooler", False)),
        *(("spafit:0-1-I", "mean", True), ("bitfit", "mean", True)),
    ],
)
def test_below_the_lowest_trained_layer_nothing_is_dropped(base, base_without_dropout, data, method, pooling, drops):
    """Where no layer is trained, a step on a base with dropout is a step on one without."""
    losses = []
    for some in (base, base_without_dropout):
        run = make_run(TaskInputs(some, data, 40), method, pooling)
        losses += take_step([(run, State(run.init_values()))])
    assert (losses[0] != losses[1]) == drops
