"""The unit of a head's outputs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetScale:
    """Mean and spread of a regression's numbers: its head learns (number - mean) / spread. Others have 0 and 1."""

    mean: float = 0.0
    spread: float = 1.0
