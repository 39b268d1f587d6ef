"""Targets, losses and scores of every task type against brute force over single examples."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_store.errors import InvalidSettings, NotFinite
from onebert_store.tables.spans import spans_of
from onebert_training.data.examples import Split
from onebert_training.target_scale import TargetScale
from onebert_training.tasks.metrics import score_answers
from onebert_training.tasks.objective import Verdict
from onebert_training.tasks.objectives import NO_TARGET, OBJECTIVES

TAGS = ("B-THING", "I-THING", "O")
SENTENCES = [
    ("the parcels were refunding late".split(), (2, 0, 2, 2, 2)),
    ("my broken screen , please".split(), (2, 0, 1, 2, 2)),
    (["naïve"], (0,)),
]
CONTEXT = "The orders were shipped late, and the refunds never came."
QUESTIONS = (
    (("What was late?", CONTEXT), ((4, "orders"),)),
    (("What never came?", CONTEXT), ((34, "the refunds"), (38, "refunds"))),
    (("When was the order shipped, was it late or early or never?", CONTEXT), ((24, "late"),)),
)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(request):
    return load_base(str(tiny_base(request.param))).tokenizer


def tagged():
    words, tags = zip(*SENTENCES, strict=True)
    return Split(tuple(map(" ".join, words)), tags, tuple(map(spans_of, words)))


def asked():
    texts, answers = zip(*QUESTIONS, strict=True)
    return Split(texts, answers)


def span_task(tokenizer):
    split = asked()
    return split, OBJECTIVES["span"](("start", "end")), tokenizer.encode(split.texts, 256, align=True)


def random_logits(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(3 * torch.randn(shape, generator=generator)).requires_grad_() for shape in shapes]


def certain(targets, num_labels):
    """Logits of which the targets are the answers."""
    return [9 * F.one_hot(target.clamp(min=0), num_labels).float().numpy() for target in targets]


def gradients(loss, logits):
    return torch.autograd.grad(loss, logits, allow_unused=True, materialize_grads=True)


def check_equal(objective, logits, targets, expected):
    """Loss and gradient are those of a sum worked out example by example."""
    loss = objective.loss(logits, targets)
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    # float32 sums in another order
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(loss, logits), gradients(expected, logits), rtol=1e-4, atol=1e-6)


def test_multi_label():
    gold = np.array([[1, 0], [0, 0], [1, 1]], dtype=np.float32)
    split = Split(("a", "b", "c"), gold)
    objective = OBJECTIVES["multi_label"](("x", "y"), split)
    logits, targets = random_logits([(2,)] * 3), objective.targets(split, [])
    rows = torch.stack(logits)
    signed = torch.where(torch.from_numpy(gold) > 0, rows, -rows)
    check_equal(objective, logits, targets, -signed.sigmoid().log().mean())
    assert objective.evaluate(split, [], list(2 * gold - 1))["accuracy"] == 1.0


@pytest.mark.parametrize("task_type", ["single_label", "multi_label"])
def test_a_teachers_probabilities_are_learned_in_place_of_its_answers(task_type):
    """The loss is least where the probabilities are the teacher's; scores count its answers."""
    theirs = torch.stack(random_logits([(3,)] * 4, seed=1)).detach()
    single = task_type == "single_label"
    soft = theirs.softmax(-1) if single else theirs.sigmoid()
    gold = theirs.argmax(-1).numpy() if single else (theirs > 0).float().numpy()
    split = Split(("a", "b", "c", "d"), gold, soft=soft.numpy())
    objective = OBJECTIVES[task_type](("x", "y", "z"), split)
    logits, targets = random_logits([(3,)] * 4), objective.targets(split, [])
    rows = torch.stack(logits)
    off = 0 if single else (1 - soft) * (-rows).sigmoid().log()
    each = -(soft * (rows.log_softmax(-1) if single else rows.sigmoid().log()) + off)
    check_equal(objective, logits, targets, each.sum(-1).mean() if single else each.mean())
    same = [row.clone().requires_grad_() for row in theirs]
    assert max(gradient.abs().max() for gradient in gradients(objective.loss(same, targets), same)) < 1e-6
    assert objective.evaluate(split, [], list(theirs.numpy()))["accuracy"] == 1.0
    part = split.take(np.array([2, 0]))
    assert np.array_equal(part.soft, split.soft[[2, 0]])
    assert np.array_equal(part.joined(split).soft, np.concatenate([part.soft, split.soft]))


def test_a_regression_is_learned_in_units_of_its_training_spread():
    train = Split(("a", "b"), np.array([10, 30], dtype=np.float32))
    other = Split(("c",), np.array([25], dtype=np.float32))
    objective = OBJECTIVES["regression"](("score",), train)
    assert objective.target_scale == TargetScale(20.0, 10.0)
    logits = [torch.tensor([21.0], requires_grad=True)]
    assert objective.loss(logits, objective.targets(other, [])).item() == pytest.approx(((25 - 21) / 10) ** 2)
    assert objective.evaluate(other, [], [logits[0].detach().numpy()])["mae"] == 4.0
    assert OBJECTIVES["regression"](("score",)).target_scale == TargetScale(0.0, 1.0)


def test_the_first_token_of_every_word_is_the_target(tokenizer):
    split = tagged()
    objective = OBJECTIVES["token"](TAGS, split)
    tokens = tokenizer.encode(split.texts, 256, align=True)
    targets = objective.targets(split, tokens)
    for (words, tags), text, target in zip(SENTENCES, tokens, targets, strict=True):
        assert [tag for tag in target.tolist() if tag != NO_TARGET] == list(tags)
        for place, word in zip(np.flatnonzero(target != NO_TARGET).tolist(), words, strict=True):
            assert " ".join(words)[text.alignment.offsets[place][0] :].lstrip().startswith(word)
    assert any(len(text) > len(words) + 2 for (words, _), text in zip(SENTENCES, tokens, strict=True))
    scores = objective.evaluate(split, tokens, certain(targets, 3))
    assert scores == dict.fromkeys(objective.metrics, 1.0)


def test_token_loss_is_the_mean_over_labeled_tokens(tokenizer):
    split = tagged()
    objective = OBJECTIVES["token"](TAGS)
    tokens = tokenizer.encode(split.texts, 256, align=True)
    logits, targets = random_logits([(len(text), 3) for text in tokens]), objective.targets(split, tokens)
    each = [
        -row.log_softmax(0)[tag]
        for rows, tags in zip(logits, targets, strict=True)
        for row, tag in zip(rows, tags, strict=True)
        if tag != NO_TARGET
    ]
    assert len(each) == 11
    check_equal(objective, logits, targets, sum(each) / 11)
    nothing = objective.loss(logits, [torch.full_like(target, NO_TARGET) for target in targets])
    assert nothing.item() == 0
    assert not any(gradient.any() for gradient in gradients(nothing, logits))


@pytest.mark.parametrize(("tags", "accuracy"), [(TAGS, 4 / 5), (("B-THING", "I-THING", "X"), 2 / 5)])
def test_words_cut_off_are_outside_or_else_wrong(tags, accuracy):
    """Of `the parcels were refunding late` the first two words are seen."""
    tokenizer = load_base(str(tiny_base("bert"))).tokenizer
    split = tagged().take(np.array([0]))
    split = Split(split.texts, ((2, 0, 2, 0, 2),), split.words)
    whole = tokenizer.encode(["the parcels"], 64)[0]
    tokens = tokenizer.encode(split.texts, len(whole), align=True)
    objective = OBJECTIVES["token"](tags)
    scores = objective.evaluate(split, tokens, certain(objective.targets(split, tokens), 3))
    assert scores["token_accuracy"] == pytest.approx(accuracy)
    if "O" in tags:
        # Two entities, the first of them found.
        assert (scores["entity_precision"], scores["entity_recall"]) == (1.0, 0.5)
        assert scores["entity_f1"] == pytest.approx(2 / 3)
    else:
        # X: 1 of 2 words seen and right -> p 1, r 1/3; B-THING: p 1, r 1/2
        assert scores["macro_f1"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_span_loss_is_over_the_tokens_of_the_context(tokenizer):
    split, objective, tokens = span_task(tokenizer)
    logits, targets = random_logits([(len(pair), 2) for pair in tokens]), objective.targets(split, tokens)
    targets[0] = torch.tensor([NO_TARGET, NO_TARGET, *targets[0][2:]])
    targets[1] = torch.tensor([NO_TARGET, NO_TARGET, 0, 0])  # the whole context is cut off
    first, last, begin, end = targets[2].tolist()
    starts, ends = logits[2][begin:end].log_softmax(0).unbind(1)
    check_equal(objective, logits, targets, -(starts[first - begin] + ends[last - begin]) / 2)
    nothing = objective.loss(logits, [targets[1]] * 3)
    assert nothing.item() == 0
    assert not any(gradient.any() for gradient in gradients(nothing, logits))


def test_the_best_span_of_the_context_is_compared_with_every_answer():
    tokenizer = load_base(str(tiny_base("bert"))).tokenizer
    split, objective, tokens = span_task(tokenizer)
    logits = [np.zeros((len(pair), 2), dtype=np.float32) for pair in tokens]
    for values, target in zip(logits, objective.targets(split, tokens), strict=True):
        values[target[0], 0] = values[target[1], 1] = 9
        values[1] = 99  # of the question, which is no answer
    assert objective.evaluate(split, tokens, logits) == {"f1": 1.0, "exact_match": 1.0}
    # `late` for `orders`: nothing shared; `refunds` is acceptable, too.
    first = objective.targets(Split(split.texts, (((24, "late"),), ((38, "refunds"),), ((24, "late"),))), tokens)
    for values, target in zip(logits, first, strict=True):
        values[1:] = 0
        values[target[0], 0] = values[target[1], 1] = 9
    assert objective.evaluate(split, tokens, logits) == pytest.approx({"f1": 2 / 3, "exact_match": 2 / 3})


def test_an_answer_that_is_cut_off_is_no_target(tokenizer):
    texts = (("late?", CONTEXT),) * 3
    split = Split(texts, (((4, "orders"),), ((24, "late"),), ((24, "late"), (4, "orders"))))
    objective = OBJECTIVES["span"](("start", "end"))
    first, last, *_ = objective.targets(split, tokenizer.encode(texts, 256, align=True))[0].tolist()
    room = last + 2  # the context ends with `orders`, and the last special token
    targets = [target[:2].tolist() for target in objective.targets(split, tokenizer.encode(texts, room, align=True))]
    assert targets == [[first, last], [NO_TARGET, NO_TARGET], [first, last]]
    assert all(map(objective.has_target, objective.targets(split, tokenizer.encode(texts, 256, align=True))))
    assert not any(map(objective.has_target, objective.targets(split, tokenizer.encode(texts, room - 1, align=True))))


@pytest.mark.parametrize(
    ("predicted", "answers", "f1", "exact"),
    [
        ("The Denver Broncos!", ["Denver Broncos"], 1, 1),
        ("in the 1996 season", ["1996"], 2 * (1 / 3 * 1) / (1 / 3 + 1), 0),
        ("in 1996", ["1996 season", "1996"], 2 * (1 / 2 * 1) / (1 / 2 + 1), 0),  # the better of both answers
        ("cat cat cat", ["cat cat dog"], 2 / 3, 0),  # words count as often as they are there
        ("U.S.", ["us"], 1, 1),
        ("well-known", ["well known"], 0, 0),  # punctuation goes without leaving a space
        ("theatre", ["a  theatre"], 1, 1),
        ("the", ["an"], 0, 1),  # nothing is left of either
        ("", ["1996"], 0, 0),
    ],
)
def test_squad_metrics_as_the_official_script_has_them(predicted, answers, f1, exact):
    scores = score_answers([[(0, answer) for answer in answers]], [predicted])
    assert scores == pytest.approx({"f1": f1, "exact_match": exact})


@pytest.mark.parametrize("task_type", OBJECTIVES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(task_type, bad):
    objective = OBJECTIVES[task_type](("a", "b"))
    with pytest.raises(NotFinite):
        objective.evaluate(Split(("t",), np.array([0])), [], [np.array([[0.0, bad]], dtype=np.float32)])


def balanced(gold, labels):
    """scikit-learn's weights of the labels that are there; the others have none."""
    present = np.unique(gold)
    weights = np.ones(labels)
    weights[present] = compute_class_weight("balanced", classes=present, y=gold)
    return torch.tensor(weights, dtype=torch.float32)


def test_the_weighted_loss_of_labels_is_torchs_with_scikit_learns_weights():
    gold = np.array([0] * 12 + [1] * 3 + [3])  # the third label has no row
    split = Split(("t",) * 16, gold)
    plain = OBJECTIVES["single_label"](("a", "b", "c", "d"), split)
    objective = plain.weighted(split)
    logits, targets = random_logits([(4,)] * 16), objective.targets(split, [])
    # Over the rows that the weights are of, torch's weighted mean and the mean of weighted losses are the same.
    check_equal(objective, logits, targets, F.cross_entropy(torch.stack(logits), torch.tensor(gold), balanced(gold, 4)))
    # A batch counts its rows and not their weights, so that batches of equal size add up to the whole.
    halves = [objective.loss(logits[i::2], targets[i::2]) for i in (0, 1)]
    torch.testing.assert_close(sum(halves) / 2, objective.loss(logits, targets))
    check_equal(plain, logits, targets, F.cross_entropy(torch.stack(logits), torch.tensor(gold)))


def test_the_weighted_loss_of_several_labels_weighs_each_label_on_its_own():
    gold = np.array([[1, 0, 0], [1, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=np.float32)  # no row has the second
    split = Split(("t",) * 4, gold)
    objective = OBJECTIVES["multi_label"](("x", "y", "z"), split).weighted(split)
    logits, targets = random_logits([(3,)] * 4), objective.targets(split, [])
    off, on = torch.stack([balanced(gold[:, label].astype(int), 2) for label in range(3)], dim=1)
    each = F.binary_cross_entropy_with_logits(
        torch.stack(logits), torch.tensor(gold), pos_weight=on / off, reduction="none"
    )
    check_equal(objective, logits, targets, (off * each).mean())


def test_the_weighted_loss_of_words_weighs_words(tokenizer):
    split = tagged()
    objective = OBJECTIVES["token"](TAGS).weighted(split)
    tokens = tokenizer.encode(split.texts, 256, align=True)
    logits, targets = random_logits([(len(text), 3) for text in tokens]), objective.targets(split, tokens)
    weights = balanced(np.concatenate(split.gold), 3)
    check_equal(objective, logits, targets, F.cross_entropy(torch.cat(logits), torch.cat(targets), weights))


@pytest.mark.parametrize("task_type", ["regression", "span"])
def test_answers_that_are_no_labels_have_no_weights(task_type):
    split = asked() if task_type == "span" else Split(("a", "b"), np.array([1, 2], dtype=np.float32))
    with pytest.raises(InvalidSettings, match=r"^--class-weight is for tasks whose answers are labels$"):
        OBJECTIVES[task_type](("a", "b"), split).weighted(split)


def rows_of(gold, labels):
    """Certain logits of label indices."""
    return list(np.eye(labels, dtype=np.float32)[gold])


def judged(objective, gold, logits, metric):
    split = Split(tuple(f"t{i}" for i in range(len(gold))), np.array(gold))
    return objective.judge(split, [], logits, objective.evaluate(split, [], logits), metric)


def test_an_answer_that_never_changes_is_not_useful():
    objective = OBJECTIVES["single_label"](("common", "rare"))
    gold = [0] * 99 + [1]
    constant = judged(objective, gold, rows_of([0] * 100, 2), "accuracy")
    assert constant.warnings == (
        "never answers 'rare' (1 row)",
        "accuracy 0.9900: always answering 'common' gives 0.9900",
    )
    assert not constant.useful
    assert judged(objective, gold, rows_of(gold, 2), "accuracy") == Verdict()


def test_the_deciding_metric_says_what_is_useful():
    """A detector of something rare is useful in spite of false alarms that lower its accuracy."""
    objective = OBJECTIVES["single_label"](("common", "rare"))
    gold = [0] * 95 + [1] * 5
    eager = judged(objective, gold, rows_of([0] * 88 + [1] * 12, 2), "macro_f1")
    assert eager == Verdict(("accuracy 0.9300: always answering 'common' gives 0.9500",), useful=True)
    assert not judged(objective, gold, rows_of([0] * 88 + [1] * 12, 2), "accuracy").useful


def test_labels_that_are_never_on_and_numbers_that_never_change():
    objective = OBJECTIVES["multi_label"](("x", "y", "z"))
    gold = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]], dtype=np.float32)
    assert judged(objective, gold, list(2 * gold * np.float32([1, 0, 1]) - 1), "micro_f1").warnings == (
        "never answers 'y' (1 row)",
    )
    objective = OBJECTIVES["regression"](("score",))
    gold = np.array([1, 2, 6], dtype=np.float32)
    # No constant correlates with anything; mean and median are the candidates.
    flat = judged(objective, gold, [np.float32([3])] * 3, "pearson")
    assert flat == Verdict(("pearson 0.0000: always answering 3 gives 0.0000",), useful=False)
    assert judged(objective, gold, list(gold[:, None]), "pearson") == Verdict()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task_type", ["single_label", "multi_label"])
def test_no_constant_answer_is_better_than_the_best(seed, task_type):
    generator, constants = np.random.default_rng(seed), np.eye(4, dtype=np.float32)
    gold = generator.integers(0, 1 + seed % 4, 12)
    if task_type == "multi_label":
        constants = np.array([*product((-1, 1), repeat=4)], dtype=np.float32)
        gold = (generator.random((12, 4)) < generator.random(4)).astype(np.float32)
        gold[0] = 1
    split, objective = Split(("t",) * 12, gold), OBJECTIVES[task_type](("a", "b", "c", "d"))
    every_score = [objective.evaluate(split, [], [logits] * 12) for logits in constants]
    for metric in objective.metrics:
        _, best = objective.best_constant(split, [], metric)
        assert best[metric] == pytest.approx(max(scores[metric] for scores in every_score))


UNEVEN = [
    ([67, 33], "'a' has 67 of 100 training rows"),
    ([2, 1], None),  # exactly two thirds
    ([30, 2, 30], "'b' has 2 training rows and 'a' 30"),
    ([30, 3, 30], None),  # exactly a tenth
    ([30, 1, 30], "'b' has 1 training row and 'a' 30"),
    ([15, 0, 15], None),  # a label that no row has is another note
]


@pytest.mark.parametrize(("counts", "why"), UNEVEN)
def test_macro_f1_decides_where_labels_are_uneven(counts, why):
    gold = np.repeat(np.arange(len(counts)), counts)
    split, objective = Split(("t",) * len(gold), gold), OBJECTIVES["single_label"]([*"abc"[: len(counts)]])
    assert objective.unevenness(split) == why
    assert objective.decides(split, None) == ("accuracy" if why is None else "macro_f1")
    assert objective.decides(split, "accuracy") == "accuracy"


def test_of_tags_only_a_constant_one_is_looked_at():
    """Entities are found or not; of other tags some are rare in any language."""
    words = Split(("t",), (tuple([0] * 5 + [1] * 4 + [2] * 4),))
    mostly = Split(("t",), (tuple([0] * 9 + [1] * 4),))
    assert OBJECTIVES["token"](("X", "Y", "Z")).decides(words, None) == "token_accuracy"
    assert OBJECTIVES["token"](("X", "Y", "Z")).decides(mostly, None) == "macro_f1"
    assert OBJECTIVES["token"](("O", "B-Y", "I-Y")).decides(mostly, None) == "entity_f1"
