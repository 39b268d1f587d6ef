"""How much computing examples cause, from their number, their labels and their tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.engine.host import Host
from onebert_store.errors import TooLarge
from onebert_store.file.manifest import SIAMESE, head_width

# Rows times labels times numbers of a row's vector: some eight seconds of one core (decision 72).
MOST_FITTED = 100_000_000
# Multiply-adds of the encoder that take as long as one of these.
_FIT = 5000

Rows = Sequence[Mapping[str, Any]]


def work_of(rows: Rows, tokens: int, host: Host) -> float:
    """Returns multiply-adds of an exact head; raises TooLarge if one core takes more than seconds to fit it."""
    hidden = host.base.config.hidden_size
    labels = len({label for row in rows for label in row.get("labels", [row.get("label")])})
    width = head_width(SIAMESE, hidden) if "text_pair" in rows[0] else hidden
    fitted = len(rows) * labels * width if "text" in rows[0] else 0
    if fitted > MOST_FITTED:
        raise TooLarge(
            f"{len(rows)} examples times {labels} labels are {len(rows) * labels}, and the server fits at most"
            f" {MOST_FITTED // width}: send fewer of each label, or push the result of onebert train"
        )
    return 12 * host.base.config.num_layers * hidden**2 * tokens + _FIT * fitted
