"""The interface between an answerer and the engine's process; `admission` and `remote/backend` implement it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_server.access.context import Context
from onebert_server.answering.plan import Computed
from onebert_server.answering.tokenizing import Split
from onebert_server.versions.facts import Facts
from onebert_store.errors import OneBertError
from onebert_store.registry.keeping import Keeping


@dataclass(frozen=True)
class Wanted:
    """The versions that shall answer, and the options of their answers.

    Attributes:
        refs: one reference per input; None means the live version of every task that takes such an input.
        pair: whether the input is a pair of texts; read only without references.
    """

    refs: Sequence[str] | None
    pair: bool = False
    asked: Asked = PLAIN


class Result(NamedTuple):
    """The logits of one version for the input with index `input`, in the order of the plan; none if it is blank there.

    `keeping` is how much its task keeps of its answers.
    """

    facts: Facts
    input: int
    computed: Sequence[Computed]
    keeping: Keeping | None = None


class Missed(NamedTuple):
    """A question without an answer, while others of its request have theirs; `input` is the index of its input."""

    ref: str
    input: int
    error: OneBertError


class Backend(Protocol):
    """Resolves references and computes, in one step: no caller ever acts on an outdated resolution."""

    def check(self, context: Context) -> None:
        """Refuses early and cheaply, with the errors of `compute`, if that would refuse the smallest request."""

    async def compute(self, context: Context, wanted: Wanted, inputs: Split) -> list[Result]:
        """Has the i-th version answer the i-th input, or every version the only one; a cancellation ends it early.

        Of every task, those are left out whose base finds no token in the input.

        Inputs are split but not yet cut: only the resolved version knows its base, its maximum length, and whether it
        takes them.

        Raises:
            Forbidden: the principal may not classify.
            InvalidInput: a malformed reference, too many tasks, or an input that a version does not take.
            TaskNotFound, VersionNotFound, AliasNotFound, VersionUnavailable: no such version, or none for this
                principal.
            OverQuota, QueueFull, OverShare, DeadlineExceeded, ShuttingDown, TooLarge: nothing was computed.
            WholeTextNeeded: a version reads a text to its end, and the text was split without it.
            EngineFailed: the logits could not be computed.
        """

    async def compute_each(self, context: Context, wanted: Wanted, inputs: Split) -> list["Result | Missed"]:
        """Like `compute`, but each question that fails, or is late at the context's deadline, becomes a `Missed`.

        It needs references and whole inputs. Forbidden and OverQuota end the whole request, as does ShuttingDown of a
        remote engine.
        """
