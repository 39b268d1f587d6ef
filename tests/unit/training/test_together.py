"""Many runs in one batch: each ends as it would alone, whatever the others are, do, or come to.

Alone and together the same numbers are summed in another order, so losses agree to their float32 rounding, 1e-7 here;
`LOSS` leaves room for other machines. Weights do not quite: Adam divides a gradient by its own size, so that where it
is zero but for rounding (what the softmax cancels, say) that rounding moves a number by up to a learning rate. Such
numbers are few: seen is that the whole differs by 3e-3 of what was learned at most, and by 1e-6 mostly. Another seed,
dropout or order of the data is far outside of both, which `test_the_tolerances_tell_runs_apart` shows.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from onebert_store.errors import NotFinite
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import groups, ignore, train, train_together
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from trainings import interrupted

pytestmark = pytest.mark.slow

LOSS = 1e-5
WEIGHTS = 2e-2
METHODS = (
    *("bitfit", "layernorm", "gamma", "lora:r=2", "random:0.2%", "random-rows:1%", "random-bias:0.5%", "adapter:4"),
    *("ia3", "init-bias", "bitfit:bq,bm2+gamma:gLN1"),
)
QUICK = Settings(epochs=3, learning_rate=5e-3, evals_per_epoch=2)


@pytest.fixture(scope="module")
def tasks(base, base_without_dropout, data, tags, questions):
    """The tokenized data sets that runs share."""
    given = {"tone": (base, data), "tags": (base, tags), "qa": (base, questions), "calm": (base_without_dropout, data)}
    return {name: TaskInputs(*pair, 40) for name, pair in given.items()}


def make_run(tasks, task, method="bitfit", **changes):
    return Run(tasks[task], replace(QUICK, method=method, **changes), task)


@pytest.fixture(scope="module")
def sixteen(tasks):
    """Methods, tasks, poolings, seeds, learning rates, batch sizes, lengths of every sort that enter at one layer."""
    runs = [
        make_run(tasks, ("tone", "tags", "qa")[i % 3], method, seed=i, learning_rate=(2e-3, 1e-2)[i % 2])
        for i, method in enumerate(METHODS)
    ]
    runs += [
        make_run(tasks, "tone", pooling="pooler", seed=1),
        make_run(tasks, "tone", pooling="cls", batch_size=5, epochs=2),
        make_run(tasks, "tags", batch_size=24, epochs=5, seed=3),
        # Nothing moves, so it stops after three evaluations.
        make_run(tasks, "tone", learning_rate=1e-12, head_learning_rate="same", patience=2),
        make_run(tasks, "qa", "lora:II,r=3", max_steps=4),
    ]
    assert len(runs) == 16
    assert len(groups(runs)) == 1
    return runs


@pytest.fixture(scope="module")
def alone(sixteen):
    return [train(run) for run in sixteen]


def together(runs, width=16, report=ignore, checkpoint_of=lambda run: None):
    """Results in the order of the runs."""
    results = {id(run): result for run, result in train_together(runs, width, report, checkpoint_of)}
    assert len(results) == len(runs)
    return [results[id(run)] for run in runs]


def losses(result):
    return np.array([[entry["loss"], entry["validation_loss"]] for entry in result.history])


def apart(run, result, other):
    """The distance of two files' numbers, relative to their distance from the start."""

    def numbers(tensors):
        return np.concatenate([value.ravel() for name, value in tensors.items() if not name.startswith("sparse_index")])

    assert result.delta.tensors.keys() == other.delta.tensors.keys()
    start = run.tensors({name: value.detach() for name, value in run.init_values().items()})
    mine, theirs, first = map(numbers, (result.delta.tensors, other.delta.tensors, start))
    return np.linalg.norm(mine - theirs) / max(np.linalg.norm(theirs - first), 1e-6)


def assert_alike(runs, got, wanted):
    for run, first, other in zip(runs, got, wanted, strict=True):
        assert (first.steps, first.kept_step) == (other.steps, other.kept_step)
        assert np.abs(losses(first) - losses(other)).max() < LOSS
        assert apart(run, first, other) < WEIGHTS
        for name, places in other.delta.tensors.items():
            assert not name.startswith("sparse_index.") or np.array_equal(first.delta.tensors[name], places)


def test_sixteen_runs_in_one_batch_end_as_each_alone(sixteen, alone):
    assert_alike(sixteen, together(sixteen), alone)
    assert len({result.steps for result in alone}) >= 4
    assert alone[14].steps == 6  # stopped early, though its neighbors went on


def test_a_run_that_diverges_ends_alone(sixteen, alone, tasks):
    wild = make_run(tasks, "tone", "bitfit+lora:r=2+gamma+random:0.1%", learning_rate=1e38, epochs=50)
    # First in the batch: its row is the one that fills the batch up.
    error, *others = together([wild, *sixteen[:15]])
    assert isinstance(error, NotFinite)
    assert "try a smaller learning rate" in error.detail
    assert_alike(sixteen[:15], others, alone[:15])


def test_runs_that_were_interrupted_together_continue_each_where_it_was(sixteen, alone, tmp_path):
    def checkpoint_of(run):
        return tmp_path / f"{sixteen.index(run)}.checkpoint"

    with interrupted(lambda run, progress: run is sixteen[13] and progress.step == 5) as report:
        together(sixteen, report=report, checkpoint_of=checkpoint_of)
    got = together(sixteen, checkpoint_of=checkpoint_of)
    resumed = [result.resumed_at for result in got]
    assert len(set(resumed)) > 1  # evaluations, and with them checkpoints, come at other steps
    assert min(resumed) > 0
    assert_alike(sixteen, got, alone)


def test_the_places_of_runs_that_ended_are_taken(sixteen, alone):
    chosen = [4, 12, 13, 14, 15, 0, 7, 10]
    runs, wanted = [sixteen[i] for i in chosen], [alone[i] for i in chosen]
    steps = defaultdict(list)
    rounds = []

    def report(run, progress):
        if progress.testing:
            return
        if not rounds or run in rounds[-1]:
            rounds.append([])
        rounds[-1].append(run)
        steps[run].append(progress.step)

    assert_alike(runs, together(runs, 3, report), wanted)
    assert all(steps[run] == list(range(1, result.steps + 1)) for run, result in zip(runs, wanted, strict=True))
    sizes = [len(stepping) for stepping in rounds]
    # Three at a time until nobody waits any more.
    last_start = next(i for i, stepping in enumerate(rounds) if stepping[-1] is runs[-1])
    assert last_start > 3
    assert sizes[:last_start] == [3] * last_start
    assert max(sizes) == 3


@pytest.mark.parametrize(
    ("task", "change"),
    [("tone", {"seed": 100}), ("tone", {"learning_rate": 4e-3}), ("tone", {"batch_size": 15}), ("calm", {})],
)
def test_the_tolerances_tell_runs_apart(tasks, task, change):
    run, other = make_run(tasks, "tone"), make_run(tasks, task, **change)
    first, two = train(run), train(other)
    assert apart(run, first, two) > 5 * WEIGHTS
    assert np.abs(losses(first) - losses(two)[: len(losses(first))]).max() > 10 * LOSS
