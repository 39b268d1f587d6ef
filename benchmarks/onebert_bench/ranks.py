"""Percentiles."""


def percentile(values: list[float], share: float) -> float:
    """The value below which a share (0 to 1) of the values lies, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
