"""Terms, the summands of a method, and the base that their rules are applied to."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from onebert_encoder.base.anatomy import LINEAR, NORMS, Anatomy, Module, Parameter
from onebert_store.errors import InvalidMethod
from onebert_store.file.delta import POOLER_SYMBOL
from onebert_training.methods.trainables import Trainable

BIASES = tuple(f"b_{part}" for part in (*LINEAR, *NORMS, "LN0", "LNf", "e", "p"))


@dataclass(frozen=True)
class Subject:
    """A base as rules see it; the pooler's bias is trainable only if the pooling uses the pooler."""

    anatomy: Anatomy
    pooling: str
    num_parameters: int

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The biases and gains that an answer depends on."""
        return tuple(p for p in self.anatomy.parameters if p.symbol != POOLER_SYMBOL or self.pooling == "pooler")

    @property
    def biases(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.symbol in BIASES)

    def modules(self, symbols: Collection[str]) -> tuple[Module, ...]:
        return tuple(m for m in self.anatomy.modules if m.symbol in symbols)

    def count(self, share: float, available: int, description: str) -> int:
        """`share` per cent of the base's parameters, rounded; InvalidMethod for 0 or more than `available`."""
        count = round(self.num_parameters * share / 100)
        if not 1 <= count <= available:
            max_share = 100 * available / self.num_parameters
            raise InvalidMethod(
                f"{share:g} % of this base are {count:,} numbers; {description} are {available:,}, {max_share:.2g} %"
            )
        return count


@dataclass(frozen=True)
class Term:
    """One summand of a method.

    Attributes:
        text: the term with all defaults written out.
        learning_rate: default up to a hidden size of 384; a sum takes the smallest. A head alone has it as its own.
        reinit: whether the term is `reinit`, which only gives the base random weights.
        alone: whether only `reinit` can be added.
        pretrained: whether the term keeps a part of pretrained weights, which means nothing if they are random.
    """

    text: str
    learning_rate: float
    trainables: Callable[[Subject], Sequence[Trainable]] = lambda _: ()
    reinit: bool = False
    alone: bool = False
    exact: bool = False
    pretrained: bool = False
