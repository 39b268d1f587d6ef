"""What people do instead of `onebert train` on the same base: each scores the test rows of a data set.

Those with gradients have the rate that is usual for what they train, and one of their own for the head, which is new;
they keep the epoch that validates best. Batches have texts of similar lengths, as with `Trainer`'s `group_by_length`.
They compute in bfloat16 where the processor multiplies it, with weights and AdamW's state in float32, as `Trainer` does
with `bf16=True`; `onebert train` computes in float32 unless `--dtype` says otherwise.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge
from sklearn.model_selection import StratifiedKFold
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.maths.precision import fast_dtype
from onebert_encoder.text.tokens import Text
from onebert_training.data.dataset import Dataset
from onebert_training.fit.inputs import frozen_vectors
from onebert_training.fit.settings import Settings
from onebert_training.tasks.metrics import is_better
from onebert_training.tasks.objectives import OBJECTIVES

Scores = dict[str, float]
"""Metrics of the test rows, by name."""

Array = np.ndarray[Any, np.dtype[Any]]
Model = Any
"""A Hugging Face model, or what PEFT makes of one."""

HEAD_RATE = 3e-3
WARM_UP = 0.1
BATCH = 16
# Of so many batches in a row, drawn at random, the texts are sorted by length, as `Trainer` does.
SORTED = 50
AT_ONCE = 64
FOLDS = 5
# Strengths of regularization that the validation rows choose from.
STRENGTHS = tuple(10.0**power for power in range(-3, 4))


@dataclass(frozen=True)
class Recipe:
    """How a Hugging Face model is trained: what is prepared, at which rate, for how many epochs."""

    prepare: Callable[[Model], Model]
    rate: float
    epochs: int


def _biases(model: Model) -> Model:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or name.startswith("classifier"))
    return model


def _lora(model: Model) -> Model:
    config = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["query", "value"])
    return get_peft_model(model, config)


RECIPES = {
    "hf-full": Recipe(lambda model: model, 5e-5, 4),
    "hf-bitfit": Recipe(_biases, 3e-3, 10),
    "peft-lora": Recipe(_lora, 5e-4, 10),
}


def linear(dataset: Dataset, seed: int) -> Scores:
    """A linear model on the mean of the base's last hidden states; of a pair on u, v, |u - v| and u * v.

    Logistic regression, or ridge regression where the label is a number; the validation rows choose how strict it is,
    or folds where there are none.
    """
    judge = Judge(dataset)
    features = {name: _features(split.texts) for name, split in dataset.splits.items()}
    if "validation" not in dataset.splits:
        gold = dataset.splits["train"].gold
        folds = StratifiedKFold(min(FOLDS, int(np.bincount(gold).min())), shuffle=True, random_state=seed)
        chosen = LogisticRegressionCV(Cs=STRENGTHS, cv=folds, max_iter=1000).fit(features["train"], gold)
        return judge.scores("test", _decisions(chosen, features["test"]))
    best: Scores | None = None
    logits: Sequence[Array] = ()
    for strength in STRENGTHS:
        model = _linear(dataset, strength, seed).fit(features["train"], dataset.splits["train"].gold)
        scores = judge.scores("validation", _decisions(model, features["validation"]))
        if judge.is_better(scores, best):
            best, logits = scores, _decisions(model, features["test"])
    return judge.scores("test", logits)


def hugging_face(recipe: Recipe, dataset: Dataset, seed: int) -> Scores:
    """`AutoModelForSequenceClassification`, trained as the recipe says."""
    torch.manual_seed(seed)
    judge, train = Judge(dataset), dataset.splits["train"]
    source = find_base(DEFAULT_BASE)
    model = recipe.prepare(AutoModelForSequenceClassification.from_pretrained(source, num_labels=len(dataset.labels)))
    steps = recipe.epochs * -(-len(train) // BATCH)
    optimizer = torch.optim.AdamW(_groups(model, recipe.rate), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [recipe.rate, HEAD_RATE], steps, pct_start=WARM_UP, anneal_strategy="linear", cycle_momentum=False
    )
    best: Scores | None = None
    kept: Mapping[str, Any] = {}
    lengths = torch.tensor([len(ids) for part in _parts(train.texts) for ids in _tokens(part, padding=False).input_ids])
    for _ in range(recipe.epochs):
        model.train()
        for rows in _batches(lengths):
            loss = _loss(dataset, _logits(model, [train.texts[i] for i in rows.tolist()]), rows)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        scores = judge.scores("validation", _answers(model, dataset, "validation"))
        if judge.is_better(scores, best):
            best, kept = scores, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return judge.scores("test", _answers(model, dataset, "test"))


def setfit(dataset: Dataset, seed: int) -> Scores:
    """SetFit (Tunstall et al. 2022) with its defaults: one pass over all pairs of the training rows, then its head.

    Raises:
        ImportError: SetFit is not installed.
    """
    from datasets import Dataset as Rows  # noqa: PLC0415
    from setfit import SetFitModel, Trainer, TrainingArguments  # noqa: PLC0415

    train, test = (dataset.splits[name] for name in ("train", "test"))
    model = SetFitModel.from_pretrained(str(find_base(DEFAULT_BASE)))
    rows = Rows.from_dict({"text": list(train.texts), "label": train.gold.tolist()})
    with TemporaryDirectory() as folder:
        asked = TrainingArguments(output_dir=folder, seed=seed, report_to="none", save_strategy="no")
        Trainer(model=model, args=asked, train_dataset=rows).train()
    probabilities = model.predict_proba(list(test.texts), as_numpy=True)
    return Judge(dataset).scores("test", list(np.log(probabilities.clip(min=1e-30)).astype(np.float32)))


SIDES: Mapping[str, Callable[[Dataset, int], Scores]] = {
    "linear": linear,
    **{name: partial(hugging_face, recipe) for name, recipe in RECIPES.items()},
}


FEW_SIDES: Mapping[str, Callable[[Dataset, int], Scores]] = {"linear": linear, "setfit": setfit}
"""What people do where a label has a few rows, none of them to validate on."""


class Judge:
    """Scores answers by the metrics of a data set, of which its own decides."""

    def __init__(self, dataset: Dataset) -> None:
        self._splits = dataset.splits
        self._objective = OBJECTIVES[dataset.task_type](dataset.labels)
        self._metric = self._objective.decides(dataset.splits["train"], dataset.metric)

    def scores(self, split: str, logits: Sequence[Array]) -> Scores:
        """Every metric of answers to a split."""
        return self._objective.evaluate(self._splits[split], [], logits)

    def is_better(self, scores: Scores, best: Scores | None) -> bool:
        """Whether the deciding metric is better than the best so far."""
        return is_better(self._metric, scores[self._metric], best[self._metric] if best else None)


def _linear(dataset: Dataset, strength: float, seed: int) -> Any:
    if dataset.task_type == "regression":
        return Ridge(alpha=1 / strength)
    return LogisticRegression(C=strength, max_iter=1000, random_state=seed)


def _decisions(model: Any, features: Array) -> list[Array]:
    """What `Judge` takes: a number for each label."""
    if isinstance(model, Ridge):
        return list(model.predict(features)[:, None])
    found = model.decision_function(features)
    # Of two classes scikit-learn gives the second one's alone.
    return list(found if found.ndim > 1 else np.stack([np.zeros_like(found), found], axis=1))


def _batches(lengths: torch.Tensor) -> Iterator[torch.Tensor]:
    """The rows of each batch of an epoch: drawn at random, those of one batch of similar lengths."""
    batches: list[torch.Tensor] = []
    for rows in torch.randperm(len(lengths)).split(SORTED * BATCH):
        batches += rows[lengths[rows].argsort()].split(BATCH)
    for place in torch.randperm(len(batches)).tolist():
        yield batches[place]


def _loss(dataset: Dataset, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    wanted = torch.as_tensor(dataset.splits["train"].gold)[rows]
    if dataset.task_type == "regression":
        middle, spread = _scale(dataset)
        return F.mse_loss(logits[:, 0], (wanted.float() - middle) / spread)
    return F.cross_entropy(logits, wanted)


def _logits(model: Model, texts: Sequence[Text]) -> torch.Tensor:
    """[texts, labels] float32."""
    dtype = fast_dtype("cpu")
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits: torch.Tensor = model(**_tokens(texts)).logits
    return logits.float()


def _scale(dataset: Dataset) -> tuple[float, float]:
    """Mean and spread of the numbers that a regression learns from."""
    gold = dataset.splits["train"].gold
    return float(gold.mean()), float(gold.std())


def _groups(model: Model, rate: float) -> list[dict[str, Any]]:
    """What is trained, the head at its own rate."""
    trained = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    return [
        {"params": [one for name, one in trained if "classifier" not in name], "lr": rate},
        {"params": [one for name, one in trained if "classifier" in name], "lr": HEAD_RATE},
    ]


def _answers(model: Model, dataset: Dataset, split: str) -> list[Array]:
    model.eval()
    texts = dataset.splits[split].texts
    with torch.inference_mode():
        parts = [_logits(model, part) for part in _parts(texts)]
    logits: Array = torch.cat(parts).numpy()
    if dataset.task_type == "regression":
        middle, spread = _scale(dataset)
        logits = logits * spread + middle
    return list(logits)


def _features(texts: Sequence[Text]) -> Array:
    if isinstance(texts[0], str):
        return _means(texts)
    first, second = (_means([text[half] for text in texts]) for half in (0, 1))
    return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)


def _means(texts: Sequence[Text]) -> Array:
    """[texts, hidden] float32: the mean of the last hidden states of each."""
    return frozen_vectors(_base(), texts, Settings().max_length)


@cache
def _base() -> Base:
    return load_base()


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(find_base(DEFAULT_BASE))


def _tokens(texts: Sequence[Text], padding: bool = True) -> Any:
    halves = [texts] if isinstance(texts[0], str) else [[text[half] for text in texts] for half in (0, 1)]
    length = Settings().max_length
    kind = "pt" if padding else None
    return _tokenizer()(*map(list, halves), padding=padding, truncation=True, max_length=length, return_tensors=kind)


def _parts(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    for start in range(0, len(texts), AT_ONCE):
        yield texts[start : start + AT_ONCE]
