"""What the outputs of a head are counted in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetScale:
    """The targets of a regression are learned in units of their spread around their mean; 0 and 1 elsewhere."""

    mean: float = 0.0
    spread: float = 1.0
