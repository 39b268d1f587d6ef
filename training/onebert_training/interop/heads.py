"""Maps a delta's head to the Hugging Face classes that can hold it, and back."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from onebert_encoder.base.families import family_of
from onebert_encoder.base.family import ClassHead
from onebert_encoder.maths.heads import ACTIVATIONS
from onebert_store.errors import InvalidInput
from onebert_store.file import strict_json
from onebert_store.file.delta import HEAD_BIAS, HEAD_DENSE_BIAS, HEAD_DENSE_WEIGHT, HEAD_NORM, HEAD_WEIGHT, listed
from onebert_store.file.manifest import SPAN_LABELS, Activation, Manifest, TaskType
from onebert_store.file.strict_json import printable

Kind = Literal["sequence", "token", "span"]


@dataclass(frozen=True)
class TaskOptions:
    """The user's choices for an imported task; None reads the model's files, or the base for `max_length` in tokens."""

    labels: Sequence[str] | None = None
    task_type: TaskType | None = None
    max_length: int | None = None


Outputs = tuple[tuple[TaskType, list[str]], list[str]]
"""An imported head: task type and names of its outputs, and warnings about assumptions, as sentences."""

POOLER = "pooler.dense"

AUTO_CLASSES: Mapping[Kind, str] = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
}

# PEFT's task types -> our kinds of head; our task types -> the default `problem_type` of a configuration.
PEFT_TASKS: Mapping[str, Kind] = {"SEQ_CLS": "sequence", "TOKEN_CLS": "token", "QUESTION_ANS": "span"}
PROBLEMS: Mapping[str, str] = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True)
class Layout:
    """The head of a Hugging Face class; in BERT the layer before the classifier is the encoder's pooler."""

    kind: Kind
    head: ClassHead

    @property
    def linear(self) -> str:
        return self.head.linear

    @property
    def dense(self) -> str | None:
        return self.head.dense

    @property
    def saved(self) -> list[str]:
        """The head's modules in PEFT's `modules_to_save`."""
        layers = (self.linear, None if self.has_pooler else self.dense, self.head.norm)
        return sorted({name.partition(".")[0] for name in layers if name})

    def pooling(self, config: Mapping[str, Any]) -> str:
        """The pooling that the head reads, by config.json; raises InvalidInput if a delta has no such pooling."""
        if self.kind != "sequence":
            return "none"
        key, pooling = self.head.pooling_key, self.head.pooling
        if key is not None:
            pooling = str(config.get(key, pooling))
            pooling = self.head.poolings.get(pooling, pooling)
        if pooling not in _POOLINGS:
            raise InvalidInput(
                f"the checkpoint's classifier reads {printable(pooling)}, and a delta's the first token or the mean"
            )
        return pooling

    def activation(self, config: Mapping[str, Any]) -> Activation:
        """The activation of the head's layer, by a model's config.json; InvalidInput if a delta has no such one."""
        default, key = self.head.activation, self.head.activation_key
        activation = default if key is None else config.get(key, default)
        if (known := next((name for name in ACTIVATIONS if name == activation), None)) is None:
            named = ", ".join(ACTIVATIONS)
            raise InvalidInput(
                f"{key} of the checkpoint's classifier is {printable(str(activation))}, and a delta's is {named}"
            )
        return known

    @property
    def has_pooler(self) -> bool:
        """Whether the encoder of this class has a pooler; DeBERTa's is a part of the class beside the encoder."""
        return self.dense is not None and self.dense.endswith(f".{POOLER}")


@dataclass(frozen=True)
class Layer:
    """A linear map of a head: `weight` [out, in], `bias` [out], `activation`, gain `norm` [out] behind that."""

    weight: Tensor
    bias: Tensor
    activation: Activation | None
    norm: Tensor | None = None


_ONE_OUTPUT = (
    "config.json does not define the one output: it is read as a probability by the sigmoid, as in transformers' "
    "pipeline; --task-type regression reads it as a number"
)
NOT_FINITE = "the answers of the imported task are not numbers"
_AMBIGUOUS_LABELS = (
    "the config.json of a DeBERTa without a problem_type does not tell one label of a text from several: give "
    "--task-type single_label or multi_label"
)
_NO_NAMES = "the outputs have no names but LABEL_0, …; --labels gives them names, in their order"

_POOLINGS = ("cls", "mean")
_EVERY_TOKEN: Mapping[Kind, ClassHead] = {"token": ClassHead("classifier"), "span": ClassHead("qa_outputs")}


def kind_of(task_type: str) -> Kind:
    """The kind of head for a task type."""
    if task_type == "token":
        return "token"
    return "span" if task_type == "span" else "sequence"


def outputs_of(config: Mapping[str, Any], kind: Kind, count: int, task_options: TaskOptions) -> Outputs:
    """The meaning of a model's outputs: from the caller, or from the configuration as transformers reads it.

    Raises:
        InvalidInput: labels do not match the head's `count` outputs, or the configuration contradicts itself.
    """
    names, unnamed = (list(task_options.labels), None) if task_options.labels else _names(config, kind, count)
    if len(names) != count:
        raise InvalidInput(f"{len(names)} labels for a classifier of {count} outputs")
    task_type, unread = task_options.task_type or kind, None
    if task_type == "sequence":
        task_type, unread = _task_type(config, count)
    return (task_type, names), [warning for warning in (unnamed, unread) if warning]


def _task_type(config: Mapping[str, Any], count: int) -> tuple[TaskType, str | None]:
    """The task type of a sequence head and a warning about assumptions; one output is read as pipelines read it."""
    problem, activation_fn = config.get("problem_type"), config.get("sentence_transformers")
    if problem is not None and problem not in PROBLEMS.values():
        raise _unlike("problem_type", f"one of {', '.join(PROBLEMS.values())}", problem, "--task-type")
    # A cross-encoder names the module behind its logits; sentence-transformers before release 4 did so under another
    # key.
    activation_fn = (
        activation_fn.get("activation_fn")
        if isinstance(activation_fn, dict)
        else config.get("sbert_ce_default_activation_function")
    )
    activation = str(activation_fn).rpartition(".")[2] if problem is None else ""
    if problem is None and activation_fn is None and count > 1 and str(config.get("model_type")).startswith("deberta"):
        # The only classes of transformers that train a multi-label task and do not write it into the configuration.
        raise InvalidInput(_AMBIGUOUS_LABELS)
    if problem == PROBLEMS["regression"] or (activation == "Identity" and count == 1):
        return "regression", None
    if problem == PROBLEMS["multi_label"] or activation == "Sigmoid":
        return "multi_label", None
    return ("single_label", None) if count > 1 else ("multi_label", _ONE_OUTPUT)


def _names(config: Mapping[str, Any], kind: Kind, count: int) -> tuple[list[str], str | None]:
    if kind == "span":
        return list(SPAN_LABELS), None
    plain, numbers = {str(i): f"LABEL_{i}" for i in range(count)}, config.get("label2id")
    names = plain if (by_number := config.get("id2label")) is None else by_number
    if not isinstance(names, dict) or not all(isinstance(name, str | int) for name in names.values()):
        raise _unlike("id2label", "names by numbers", by_number, "--labels")
    if names.keys() != plain.keys():
        raise InvalidInput(
            f"id2label in config.json names {listed(names) or 'nothing'}, "
            f"and the classifier has the outputs 0 to {count - 1}; give the labels"
        )
    # Tools that rename a model's outputs may leave label2id with the default names.
    fits = isinstance(numbers, dict) and all(
        name in (plain.get(str(i)), names.get(str(i))) for name, i in numbers.items()
    )
    if numbers is not None and not fits:
        names_json = f"what id2label says, {printable(strict_json.encode(names))}"
        raise _unlike("label2id", names_json, numbers, "--labels in the order of the outputs")
    return [str(names[number]) for number in plain], _NO_NAMES if names == plain else None


def _unlike(name: str, expected: str, value: Any, cure: str) -> InvalidInput:
    return InvalidInput(f"{name} in config.json is not {expected}: {printable(strict_json.encode(value))}; give {cure}")


def layout_of(model_type: str, kind: Kind) -> Layout:
    """The layout of an architecture's class; raises InvalidInput if it is not known."""
    if (head := family_of(model_type).heads.get(kind, _EVERY_TOKEN.get(kind))) is None:
        raise InvalidInput(f"where the sequence classifier of {model_type} keeps its layers is not known here")
    return Layout(kind, head)


def fitting_layout(manifest: Manifest, head: Container[str]) -> Layout | None:
    """The layout of the Hugging Face class that computes this head (`head`: tensors' names); None without one."""
    try:
        layout = layout_of(manifest.base.model_type, kind_of(manifest.task_type))
    except InvalidInput:
        return None
    known, pooling, has_dense = layout.head, manifest.pooling, HEAD_DENSE_WEIGHT in head
    if pooling == "pooler":
        return layout if known.dense and known.activation == "tanh" and not (known.norm or has_dense) else None
    layer = (has_dense, manifest.activation, HEAD_NORM in head)
    activation = manifest.activation if known.activation_key else known.activation
    fits = layer == (known.dense is not None, activation if known.dense else "tanh", known.norm is not None)
    reads = pooling in ("none", known.pooling) or (known.pooling_key is not None and pooling in _POOLINGS)
    return layout if fits and reads else None


def peft_layout(manifest: Manifest, head: Container[str]) -> Layout:
    """The layout of the class on which PEFT can put this head; raises InvalidInput if there is no such class."""
    if (layout := fitting_layout(manifest, head)) is not None:
        return layout
    model_type, pooling = manifest.base.model_type, manifest.pooling
    layer = f"the first token through a {manifest.activation} layer"
    first = layer if HEAD_DENSE_WEIGHT in head else "the first token as it is"
    reads = {"mean": "the mean of all tokens", "cls": first}.get(pooling, pooling)
    known = family_of(model_type).heads.get("sequence")
    # `--pooling pooler` gives a fitting head only if the class's layer before the classifier is the base's pooler.
    trainable = known is not None and Layout("sequence", known).has_pooler
    cure = "train with --pooling pooler, or " if trainable else ""
    raise InvalidInput(f"PEFT has no classifier for {model_type} that reads {reads}: {cure}export without --peft")


def head_layers(manifest: Manifest, params: Mapping[str, Tensor], head: Mapping[str, Tensor]) -> list[Layer]:
    """The head as consecutive layers, beginning with the base's pooler if the pooling is `pooler`."""
    layers = []
    if manifest.pooling == "pooler":
        layers.append(Layer(params[f"{POOLER}.weight"], params[f"{POOLER}.bias"], "tanh"))
    if HEAD_DENSE_WEIGHT in head:
        layer = head[HEAD_DENSE_WEIGHT], head[HEAD_DENSE_BIAS]
        layers.append(Layer(*layer, manifest.activation, head.get(HEAD_NORM)))
    return [*layers, Layer(head[HEAD_WEIGHT], head[HEAD_BIAS], None)]


def head_state(layout: Layout, layers: Sequence[Layer]) -> dict[str, Tensor]:
    """A head's tensors by `fitting_layout`'s class; raises InvalidInput if its layer has no bias and the head's has."""
    if not layout.head.bias and layers[0].bias.any():
        raise InvalidInput("the layer of the class's classifier has no bias, and the head's has one")
    names = [name for name in (layout.dense, layout.linear) if name is not None]
    named = list(zip(names, layers, strict=True))
    weights = {f"{name}.weight": layer.weight for name, layer in named}
    norms = {f"{layout.head.norm}.weight": layer.norm for layer in layers if layer.norm is not None}
    biased = [(name, layer) for name, layer in named if layout.head.bias or name != layout.dense]
    return weights | norms | {f"{name}.bias": layer.bias for name, layer in biased}


class WithHead(nn.Module):
    """A plain encoder of transformers with a head's layers (LayerNorm by the base's `eps`); spans have two outputs."""

    def __init__(
        self, encoder: nn.Module, layers: Sequence[Layer], pooling: str, eps: float = 0.0, span: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.config, self.pooling, self.span = encoder, encoder.config, pooling, span
        self.layers = nn.ModuleList(map(_linear, layers))
        self.activations, self.eps = [layer.activation for layer in layers], eps
        norms = {str(i): layer.norm for i, layer in enumerate(layers) if layer.norm is not None}
        self.norms = nn.ParameterDict({name: nn.Parameter(norm) for name, norm in norms.items()})

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        x = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **segments).last_hidden_state
        if self.pooling == "mean":
            weight = attention_mask[..., None].to(x.dtype)
            x = (x * weight).sum(1) / weight.sum(1)
        elif self.pooling != "none":
            x = x[:, 0]
        for i, (linear, activation) in enumerate(zip(self.layers, self.activations, strict=True)):
            x = linear(x) if activation is None else ACTIVATIONS[activation](linear(x))
            if str(i) in self.norms:
                x = F.layer_norm(x, x.shape[-1:], self.norms[str(i)], None, self.eps)
        return (x[..., 0], x[..., 1]) if self.span else x


def _linear(layer: Layer) -> nn.Linear:
    outputs, inputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs)
    linear.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    return linear


def split_head(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The delta's tensors as (encoder's, head's)."""
    head = {name: tensor for name, tensor in tensors.items() if name.startswith("head.")}
    return {name: tensor for name, tensor in tensors.items() if name not in head}, head
