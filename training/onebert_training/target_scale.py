"""The unit of a head's outputs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetScale:
    """Mean and spread of a regression's training numbers: its head learns (number - mean) / spread.

    Other task types keep mean 0 and spread 1, which change nothing.
    """

    mean: float = 0.0
    spread: float = 1.0
