"""The scores of every kind; a family names its own (`Family.scores`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from onebert_encoder.compute.rotary import Rotary
from onebert_encoder.compute.scores import PLAIN_SCORES, Scores
from onebert_store.errors import UnsupportedBase


class Settings(Protocol):
    """The fields of a base's configuration that scores read."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def rotary(self) -> Sequence[tuple[float, int]]: ...


MakeScores = Callable[[Settings, Callable[[str], Tensor], int], Scores]
"""Makes the scores of a layer, from the configuration, parameters outside the layers (by symbol), and the number."""


def _rotary(config: Settings, param: Callable[[str], Tensor], layer: int) -> Scores:
    return Rotary(*config.rotary[layer], config.hidden_size // config.num_heads, config.max_positions)


SCORES: Mapping[str, MakeScores] = {"none": lambda config, param, layer: PLAIN_SCORES, "rotary": _rotary}
"""By name; only the plain kernels compute others than `none` (maths/choose.py)."""


def scores_of(name: str) -> MakeScores:
    """The entry of `SCORES`; raises UnsupportedBase without one."""
    if name not in SCORES:
        raise UnsupportedBase(f"its attention scores {name!r} are not computed; computed: {', '.join(SCORES)}")
    return SCORES[name]
