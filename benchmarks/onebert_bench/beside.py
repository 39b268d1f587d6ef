"""What people do instead of `onebert train` on the same base: each scores the test rows of a data set.

Those with gradients have the rate that is usual for what they train, and one of their own for the head, which is new;
they keep the epoch that validates best. Transformers' `Trainer` trains them, in bfloat16 where the processor multiplies
it; `onebert train` computes in float32 unless `--dtype` says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge
from sklearn.model_selection import StratifiedKFold
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from onebert_bench.suite.floors import KINDS, train_floor
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.maths.precision import fast_dtype
from onebert_encoder.text.tokens import Text
from onebert_training.data.dataset import Dataset
from onebert_training.fit.inputs import frozen_vectors
from onebert_training.fit.settings import Settings
from onebert_training.tasks.metrics import LOWER_IS_BETTER
from onebert_training.tasks.objectives import OBJECTIVES

Scores = dict[str, float]
"""Metrics of the test rows, by name."""

Array = np.ndarray[Any, np.dtype[Any]]
Model = Any
"""A Hugging Face model, or what PEFT makes of one."""

HEAD_RATE = 3e-3
WARM_UP = 0.1
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
    judge, gold = Judge(dataset), dataset.splits["train"].gold
    features = {name: _features(split.texts) for name, split in dataset.splits.items()}
    if "validation" in dataset.splits:
        fitted = [_linear(dataset, strength, seed).fit(features["train"], gold) for strength in STRENGTHS]
        chosen = max(fitted, key=lambda model: judge.grade("validation", _decisions(model, features["validation"])))
    else:
        folds = StratifiedKFold(min(FOLDS, int(np.bincount(gold).min())), shuffle=True, random_state=seed)
        chosen = LogisticRegressionCV(Cs=STRENGTHS, cv=folds, max_iter=1000).fit(features["train"], gold)
    return judge.scores("test", _decisions(chosen, features["test"]))


def hugging_face(recipe: Recipe, dataset: Dataset, seed: int) -> Scores:
    """`AutoModelForSequenceClassification`, trained by `Trainer` as the recipe says."""
    set_seed(seed)
    judge, tokenizer, (middle, spread) = Judge(dataset), _tokenizer(), _scale(dataset)
    source = find_base(DEFAULT_BASE)
    model = recipe.prepare(AutoModelForSequenceClassification.from_pretrained(source, num_labels=len(dataset.labels)))
    with TemporaryDirectory() as folder:
        asked = TrainingArguments(
            folder,
            seed=seed,
            num_train_epochs=recipe.epochs,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            warmup_steps=WARM_UP,
            bf16=fast_dtype("cpu") == torch.bfloat16,
            use_cpu=True,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            load_best_model_at_end=True,
            metric_for_best_model=judge.metric,
            greater_is_better=judge.metric not in LOWER_IS_BETTER,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            asked,
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=_rows(dataset, "train"),
            eval_dataset=_rows(dataset, "validation"),
            compute_metrics=lambda predicted: judge.scores("validation", predicted.predictions * spread + middle),
            optimizers=(torch.optim.AdamW(_groups(model, recipe.rate), weight_decay=0.0, fused=True), None),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        trainer.compute_metrics = None  # they are those of the validation rows
        return judge.scores("test", trainer.predict(_rows(dataset, "test")).predictions * spread + middle)


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
    return Judge(dataset).scores("test", np.log(probabilities.clip(min=1e-30)).astype(np.float32))


def floor(kind: str, dataset: Dataset, _: int) -> Scores:
    """A classifier without an encoder, the same from every seed.

    Raises:
        PeerFailed: its packages cannot be installed, or it does not train.
    """
    with TemporaryDirectory() as folder:
        return Judge(dataset).scores("test", train_floor(kind, dataset.splits, Path(folder)))


SIDES: Mapping[str, Callable[[Dataset, int], Scores]] = {
    "linear": linear,
    **{name: partial(hugging_face, recipe) for name, recipe in RECIPES.items()},
}


FLOORS: Mapping[str, Callable[[Dataset, int], Scores]] = {kind: partial(floor, kind) for kind in KINDS}
"""The cheap floors, which answer much faster."""

FEW_SIDES: Mapping[str, Callable[[Dataset, int], Scores]] = {"linear": linear, "setfit": setfit}
"""What people do where a label has a few rows, none of them to validate on."""


class Judge:
    """Scores answers by the metrics of a data set, of which its own decides."""

    def __init__(self, dataset: Dataset) -> None:
        self._splits = dataset.splits
        self._objective = OBJECTIVES[dataset.task_type](dataset.labels)
        self.metric = self._objective.decides(dataset.splits["train"], dataset.metric)

    def scores(self, split: str, logits: Array) -> Scores:
        """Every metric of answers to a split."""
        return self._objective.evaluate(self._splits[split], [], list(logits))

    def grade(self, split: str, logits: Array) -> float:
        """The deciding metric of answers to a split; the greater is better."""
        score = self.scores(split, logits)[self.metric]
        return -score if self.metric in LOWER_IS_BETTER else score


def _linear(dataset: Dataset, strength: float, seed: int) -> Any:
    if dataset.task_type == "regression":
        return Ridge(alpha=1 / strength)
    return LogisticRegression(C=strength, max_iter=1000, random_state=seed)


def _decisions(model: Any, features: Array) -> Array:
    """What `Judge` takes: a number for each label."""
    decisions: Array = (
        model.predict(features)[:, None] if isinstance(model, Ridge) else model.decision_function(features)
    )
    # Of two classes scikit-learn gives the second one's alone.
    return decisions if decisions.ndim > 1 else np.stack([np.zeros_like(decisions), decisions], axis=1)


def _rows(dataset: Dataset, split: str) -> list[dict[str, Any]]:
    """The rows of a split as `Trainer` takes them."""
    part, (middle, spread) = dataset.splits[split], _scale(dataset)
    halves = [part.texts] if isinstance(part.texts[0], str) else zip(*part.texts, strict=True)
    tokens = _tokenizer()(*map(list, halves), truncation=True, max_length=Settings().max_length)
    labels = (part.gold - middle) / spread if dataset.task_type == "regression" else part.gold
    return [
        {**dict(zip(tokens, row, strict=True)), "labels": label}
        for *row, label in zip(*tokens.values(), labels.tolist(), strict=True)
    ]


def _scale(dataset: Dataset) -> tuple[float, float]:
    """Mean and spread of the numbers that a regression learns from; of other labels those that change nothing."""
    gold = dataset.splits["train"].gold
    return (float(gold.mean()), float(gold.std())) if dataset.task_type == "regression" else (0.0, 1.0)


def _groups(model: Model, rate: float) -> list[dict[str, Any]]:
    """What is trained, the head at its own rate."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for name, parameter in trained if "classifier" not in name], "lr": rate},
        {"params": [parameter for name, parameter in trained if "classifier" in name], "lr": HEAD_RATE},
    ]


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
