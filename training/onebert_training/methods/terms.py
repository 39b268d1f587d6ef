"""Terms, the summands of a method, and the base that their rules are applied to."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from onebert_encoder.base.anatomy import LINEAR, NORMS, Anatomy, Module, Parameter
from onebert_store.errors import InvalidMethod
from onebert_store.file.delta import POOLER_SYMBOL
from onebert_training.methods.trainables import Trainable
from onebert_training.methods.weights import Weights

BIASES = tuple(f"b_{part}" for part in (*LINEAR, *NORMS, "LN0", "e", "p"))


@dataclass(frozen=True)
class Subject:
    """A base as rules see it; the pooler's bias can be trained only where the pooler is used."""

    anatomy: Anatomy
    pooling: str
    num_parameters: int

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The biases and gains that an answer depends on."""
        return tuple(p for p in self.anatomy.parameters if p.symbol != POOLER_SYMBOL or self.pooling == "pooler")

    @property
    def biases(self) -> tuple[Parameter, ...]:
        """The biases that `bitfit` trains."""
        return tuple(p for p in self.parameters if p.symbol in BIASES)

    def modules(self, symbols: Collection[str]) -> tuple[Module, ...]:
        """The linear maps of all layers that have one of these symbols."""
        return tuple(m for m in self.anatomy.modules if m.symbol in symbols)

    def count(self, share: float, available: int, what: str) -> int:
        """How many numbers are `share` per cent of the base's parameters.

        Raises:
            InvalidMethod: none, or more than are `available`.
        """
        count = round(self.num_parameters * share / 100)
        if not 1 <= count <= available:
            most = 100 * available / self.num_parameters
            raise InvalidMethod(
                f"{share:g} % of this base are {count:,} numbers; {what} are {available:,}, {most:.2g} %"
            )
        return count


@dataclass(frozen=True)
class Term:
    """One summand of a method.

    Attributes:
        text: the term with all defaults written out.
        learning_rate: default for bases of hidden size 384 and less; of a sum the smallest counts. Of a method that
            trains the head alone it is the head's.
        trainables: gives the differences that it trains.
        weights: gives its change of the base's own weights.
        reinit: whether it is `reinit`, which only lets the base start with random weights.
        alone: whether no other term than `reinit` can be added.
        exact: whether nothing is trained by steps: the head is found exactly.
        pretrained: whether it is a difference from pretrained weights, which means nothing where they are random.
    """

    text: str
    learning_rate: float
    trainables: Callable[[Subject], Sequence[Trainable]] = lambda _: ()
    weights: Callable[[Subject], Weights] | None = None
    reinit: bool = False
    alone: bool = False
    exact: bool = False
    pretrained: bool = False
