"""Percentiles, medians with their spread, ratios within a repetition, and numbers as tables show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share (0 to 1) of the values lies, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True)
class Spread:
    """The median (`middle`), the smallest (`low`) and the largest (`high`) of some numbers."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of one or more numbers."""
        return cls(median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{short(self.middle)} ({short(self.low)}–{short(self.high)})"


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The spread of the ratios of two series that were measured in turns; slow drift of the machine cancels."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])


def short(value: float) -> str:
    """A number with three digits, or all that stand before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
