"""Which Hugging Face class can hold a delta's head, for import and every export, and the head as layers."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from onebert_encoder.base.anatomy import family_of
from onebert_store.errors import InvalidInput
from onebert_store.file.delta import HEAD_BIAS, HEAD_DENSE_BIAS, HEAD_DENSE_WEIGHT, HEAD_WEIGHT, listed
from onebert_store.file.manifest import SPAN_LABELS, Manifest

Kind = Literal["sequence", "token", "span"]

POOLER = "pooler.dense"

AUTO_CLASSES: Mapping[Kind, str] = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
}

# PEFT's task types -> our kinds of head; our task types -> the `problem_type` that a configuration has by default.
PEFT_TASKS: Mapping[str, Kind] = {"SEQ_CLS": "sequence", "TOKEN_CLS": "token", "QUESTION_ANS": "span"}
PROBLEMS: Mapping[str, str] = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True)
class Layout:
    """The names of the head's modules in a Hugging Face class.

    Attributes:
        kind: the kind of task that the class is for.
        linear: module of the last linear map.
        dense: module of the tanh layer on the first token (in BERT the encoder's pooler); None where the head reads
            every token.
        saved: the head's name in PEFT's `modules_to_save`.
    """

    kind: Kind
    linear: str
    dense: str | None
    saved: str

    @property
    def has_pooler(self) -> bool:
        """Whether the encoder of this class has a pooler."""
        return self.dense is not None and self.dense.endswith(POOLER)


@dataclass(frozen=True)
class Layer:
    """One linear map of a head: `weight` [outputs, inputs], `bias` [outputs], and whether a tanh follows."""

    weight: Tensor
    bias: Tensor
    tanh: bool


_EVERY_TOKEN: Mapping[Kind, Layout] = {
    "token": Layout("token", "classifier", None, "classifier"),
    "span": Layout("span", "qa_outputs", None, "qa_outputs"),
}


def kind_of(task_type: str) -> Kind:
    """The kind of head that a task type needs."""
    if task_type == "token":
        return "token"
    return "span" if task_type == "span" else "sequence"


def task_type_of(config: Mapping[str, Any], kind: Kind, count: int) -> str:
    """The task type by a model's configuration: of a class for sequences its problem type, or one output or several."""
    if kind != "sequence":
        return kind
    of_problem = {theirs: ours for ours, theirs in PROBLEMS.items()}
    return of_problem.get(str(config.get("problem_type"))) or ("regression" if count == 1 else "single_label")


def label_names(config: Mapping[str, Any], kind: Kind, count: int) -> list[str]:
    """The names of a head's outputs by a model's configuration; `LABEL_0`, … where it has none.

    Raises:
        InvalidInput: the configuration names others than the head has.
    """
    if kind == "span":
        return list(SPAN_LABELS)
    names = config.get("id2label")
    if not isinstance(names, dict):
        return [f"LABEL_{i}" for i in range(count)]
    if set(names) != {str(i) for i in range(count)}:
        raise InvalidInput(
            f"id2label in config.json names {listed(map(str, names)) or 'nothing'}, "
            f"and the classifier has the outputs 0 to {count - 1}; give the labels"
        )
    return [str(names[str(i)]) for i in range(count)]


def layout_of(model_type: str, kind: Kind) -> Layout:
    """The layout of an architecture's class.

    Raises:
        InvalidInput: the class has a layer that a delta's head cannot hold, or its head is not known here.
        UnsupportedBase: the architecture is not supported.
    """
    if kind != "sequence":
        return _EVERY_TOKEN[kind]
    head = family_of(model_type).sequence_head
    if head is None:
        raise InvalidInput(f"where the sequence classifier of {model_type} keeps its layers is not known here")
    if head.activation != "tanh":
        raise InvalidInput(
            f"the sequence classifier of {model_type} has a {head.activation} layer, "
            "where the head of a delta has a tanh layer or none"
        )
    return Layout("sequence", head.linear, head.dense, head.linear.partition(".")[0])


def fitting_layout(manifest: Manifest, head: Container[str]) -> Layout | None:
    """The layout of the Hugging Face class that computes the same as this head; None if there is no such class.

    A class for sequences reads the first token through exactly one tanh layer, which may be the base's pooler
    (`pooler`) or the head's own (`cls` with `head.dense`); a class for tokens or spans has no such layer.

    Args:
        manifest: of the delta.
        head: names of its `head.*` tensors.
    """
    kind, has_dense = kind_of(manifest.task_type), HEAD_DENSE_WEIGHT in head
    fits = (manifest.pooling, has_dense) in {
        "sequence": (("pooler", False), ("cls", True)),
        "token": (("none", False),),
        "span": (("none", False),),
    }[kind]
    try:
        return layout_of(manifest.base.model_type, kind) if fits else None
    except InvalidInput:
        return None


def peft_layout(manifest: Manifest, head: Container[str]) -> Layout:
    """The layout of the Hugging Face class that PEFT can put this head on.

    Args:
        manifest: the delta's manifest.
        head: names of its `head.*` tensors.

    Raises:
        InvalidInput: there is no such class; the message says what to do instead.
    """
    if (layout := fitting_layout(manifest, head)) is not None:
        return layout
    model_type, pooling = manifest.base.model_type, manifest.pooling
    first = "the first token through a tanh layer" if HEAD_DENSE_WEIGHT in head else "the first token as it is"
    reads = {"mean": "the mean of all tokens", "cls": first}.get(pooling, pooling)
    known = family_of(model_type).sequence_head
    # `--pooling pooler` gives a fitting head only where the class's layer before the classifier is the base's pooler.
    trainable = known is not None and known.activation == "tanh" and known.dense.endswith(POOLER)
    cure = "train with --pooling pooler, or " if trainable else ""
    raise InvalidInput(f"PEFT has no classifier for {model_type} that reads {reads}: {cure}export without --peft")


def head_state(layout: Layout, params: Mapping[str, Tensor], head: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head by the names that the Hugging Face class gives it.

    Args:
        layout: from `fitting_layout`.
        params: the encoder's parameters; the pooler's are read where the task uses it.
        head: `head.*` tensors of the delta.
    """
    state = {f"{layout.linear}.weight": head[HEAD_WEIGHT], f"{layout.linear}.bias": head[HEAD_BIAS]}
    if layout.dense is None:
        return state
    own = HEAD_DENSE_WEIGHT in head
    weight = head[HEAD_DENSE_WEIGHT] if own else params[f"{POOLER}.weight"]
    bias = head[HEAD_DENSE_BIAS] if own else params[f"{POOLER}.bias"]
    return state | {f"{layout.dense}.weight": weight, f"{layout.dense}.bias": bias}


def head_layers(pooling: str, params: Mapping[str, Tensor], head: Mapping[str, Tensor]) -> list[Layer]:
    """The head as the layers that follow one another, the base's pooler first where the task uses it.

    Args:
        pooling: of the manifest.
        params: the encoder's parameters; the pooler's are read where the task uses it.
        head: `head.*` tensors of the delta.
    """
    layers = []
    if pooling == "pooler":
        layers.append(Layer(params[f"{POOLER}.weight"], params[f"{POOLER}.bias"], tanh=True))
    if HEAD_DENSE_WEIGHT in head:
        layers.append(Layer(head[HEAD_DENSE_WEIGHT], head[HEAD_DENSE_BIAS], tanh=True))
    return [*layers, Layer(head[HEAD_WEIGHT], head[HEAD_BIAS], tanh=False)]


def split_head(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Divides a delta's tensors into (those of the encoder, those of the head)."""
    head = {name: tensor for name, tensor in tensors.items() if name.startswith("head.")}
    return {name: tensor for name, tensor in tensors.items() if name not in head}, head
