"""Which of the waiting sequences go into the next batch: a pure function, no clock, no torch."""

from collections.abc import Iterable


def take_batch(lengths: Iterable[int], max_tokens: int) -> int:
    """How many of the oldest waiting sequences fit a batch.

    Tokens are packed without padding, so a batch costs the sum of its lengths. A sequence that is over the budget alone
    still goes, alone: admission bounds its length.

    Args:
        lengths: tokens of each waiting sequence, oldest first.
        max_tokens: the budget.

    Returns:
        At least 1 when anything waits, else 0.
    """
    total = count = 0
    for length in lengths:
        total += length
        if total > max_tokens and count:
            break
        count += 1
    return count
