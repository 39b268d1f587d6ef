"""What an answerer asks of the process with the engine: which versions are wanted, and their logits for some inputs.

`admission` is the answer of that process to itself, `front_ends/remote` that of a front end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.text.tokens import Pieces
from onebert_server.access.context import Context
from onebert_server.answering.plan import Computed
from onebert_server.versions.facts import Facts
from onebert_store.errors import OneBertError


@dataclass(frozen=True)
class Wanted:
    """Which versions shall answer, and what is asked of them.

    Attributes:
        refs: a reference for each input; None is the live version of every task that takes such an input.
        pair: whether the input is a pair of texts; read only where there are no references.
        asked: what each answer shall be like; how many scores of it are wanted also bounds its size.
    """

    refs: Sequence[str] | None
    pair: bool = False
    asked: Asked = PLAIN


class Result(NamedTuple):
    """What one version made of one input.

    Attributes:
        facts: the version.
        input: the index of the input.
        computed: what was computed for it, in the order of its plan.
    """

    facts: Facts
    input: int
    computed: Sequence[Computed]


class Missed(NamedTuple):
    """A question that has no answer, while others of its request have theirs.

    Attributes:
        ref: the task or version that was asked.
        input: the index of the input.
        error: why.
    """

    ref: str
    input: int
    error: OneBertError


class Backend(Protocol):
    """Resolves references and computes, in one step: no caller ever acts on what a reference meant earlier."""

    def check(self, context: Context) -> None:
        """Refuses what would be refused however small it were; under overload a refusal should cost little.

        Raises:
            OverQuota, QueueFull, OverShare, ShuttingDown, EngineFailed: nothing more would be computed of this
                principal now.
        """

    async def compute(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list[Result]:
        """Has the i-th version answer the i-th input, or every version the only one; ends early when it is cancelled.

        Inputs are split but not yet cut: only the version that a reference means at this moment says how long they may
        be, and whether it takes them.

        Raises:
            Forbidden: the principal may not have anything classified.
            InvalidInput: not a reference, too many tasks, or an input that a version does not take.
            TaskNotFound, VersionNotFound, AliasNotFound, VersionUnavailable: there is no such version,
                or not for this principal.
            OverQuota, QueueFull, OverShare, DeadlineExceeded, ShuttingDown, TooLarge: nothing was computed.
            EngineFailed: the logits could not be computed.
        """

    async def compute_each(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list["Result | Missed"]:
        """As `compute`, each question on its own: what is wrong with one, or late, is said of that one.

        Args:
            context: of the request; what is not computed by its deadline is missed.
            wanted: with references.
            inputs: whole ones, as windows read them.

        Raises:
            Forbidden, OverQuota, ShuttingDown: nothing was computed.
        """
