"""How much computing examples cause, from their number, their labels and their tokens."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onebert_encoder.text.tokens import Pieces
from onebert_server.engine.host import Host
from onebert_store.errors import TooLarge
from onebert_store.file.manifest import SIAMESE, head_width

# Rows times labels times numbers of a row's vector. One core of 2020 takes 8 to 10 seconds to fit the exact head of
# that many: 36 fits of some twenty iterations (decision 72).
MOST_FITTED = 100_000_000
# Multiply-adds of the encoder that take as long as one of these.
_FIT = 5000

Rows = Sequence[Mapping[str, str]]


class Work(NamedTuple):
    """What an exact head takes: tokens to encode, and the estimated multiply-adds for them and the fits."""

    tokens: int
    total: int


def work_of(rows: Rows, pieces: Sequence[Pieces], host: Host) -> Work:
    """Raises TooLarge if the exact head of the rows takes one core more than seconds."""
    hidden = host.base.config.hidden_size
    tokens = sum(len(half) for text in pieces for half in text.ids)
    labels = len({row["label"] for row in rows})
    width = head_width(SIAMESE, hidden) if "text_pair" in rows[0] else hidden
    fitted = len(rows) * labels * width if "text" in rows[0] else 0
    if fitted > MOST_FITTED:
        raise TooLarge(
            f"{len(rows)} examples times {labels} labels are {len(rows) * labels}, and the server fits at most"
            f" {MOST_FITTED // width}: send fewer of each label, or push the result of onebert train"
        )
    return Work(tokens, 12 * host.base.config.num_layers * hidden**2 * tokens + _FIT * fitted)
