"""How much of a task's answers is kept."""

from dataclasses import dataclass

from onebert_store.errors import InvalidInput

MAX_DAYS, MAX_SAMPLES = 3650, 1_000_000


@dataclass(frozen=True, slots=True)
class Keeping:
    """Keeps each answer with the probability `share`, for `days`, at most the latest `most`; `id` lasts as long."""

    share: float
    days: int
    most: int
    id: str = ""


def check_keeping(keeping: Keeping) -> None:
    """Raises InvalidInput if a number breaks its rule."""
    if not 0 < keeping.share <= 1:
        raise InvalidInput("share is above 0 and at most 1")
    if not 0 < keeping.days <= MAX_DAYS:
        raise InvalidInput(f"days are 1 to {MAX_DAYS}")
    if not 0 < keeping.most <= MAX_SAMPLES:
        raise InvalidInput(f"most is 1 to {MAX_SAMPLES}")
