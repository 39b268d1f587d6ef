"""Rounds matrix products to a few shapes."""


def round_up(tokens: int) -> int:
    """The next round number of tokens: a multiple of 8 up to 64, of 32 up to 512, of 128 beyond."""
    step = step_at(tokens)
    return -(-tokens // step) * step


def step_at(tokens: int) -> int:
    """The distance between round numbers at `tokens`; the filling is always shorter."""
    return 8 if tokens <= 64 else 32 if tokens <= 512 else 128
