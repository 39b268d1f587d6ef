"""Every error a user can meet; the edges (HTTP, command line) turn errors into answers.

One file although it is long: each class is a row of docs/reference/errors.md, which docs/generate.py makes of them.
Inner code raises these errors and knows nothing of HTTP; an edge reads
`status`, `code`, `title`, `detail` and `retry_after`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class OneBertError(Exception):
    """A fault of the server; its log has the request's id.

    The root of the tree; `detail` is one sentence a user can act on and never holds a path or a user's text.

    Attributes:
        of_code: every kind that has a code of its own, by that code.
    """

    status: int = 500
    code: str = "internal"
    title: str = "Internal error"
    retry_after: int | None = None
    of_code: ClassVar[dict[str, type["OneBertError"]]] = {}

    def __init_subclass__(
        cls, status: int = 0, code: str = "", title: str = "", retry_after: int | None = None
    ) -> None:
        """A kind of error: its header names what it does not take over from its parent."""
        super().__init_subclass__()
        if code:
            cls.of_code[code] = cls
        for name, value in {"status": status, "code": code, "title": title, "retry_after": retry_after}.items():
            if value:
                setattr(cls, name, value)

    def __init__(self, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after or self.retry_after


class InvalidDelta(OneBertError, status=422):
    """A delta that is refused; nothing of it is stored."""


class MalformedFile(InvalidDelta, code="malformed-file", title="Malformed delta file"):
    """The bytes are not the layout of a delta file."""


class InvalidManifest(InvalidDelta, code="invalid-manifest", title="Invalid manifest"):
    """The file's manifest breaks a rule, or does not fit the base."""


class TensorMismatch(InvalidDelta, code="tensor-mismatch", title="Tensors do not fit"):
    """Tensors are unknown, missing or misshapen for the base."""


class NotFinite(InvalidDelta, code="not-finite", title="Numbers are not finite"):
    """NaN or infinity, in a file or in its test answers."""


class BaseMismatch(InvalidDelta, code="base-mismatch", title="Another base"):
    """The delta was made for another base."""


class GoldenMismatch(InvalidDelta, code="golden-mismatch", title="Golden logits do not agree"):
    """The logits computed here differ from the trainer's."""


class DigestMismatch(InvalidDelta, code="digest-mismatch", title="Digests differ"):
    """The bytes do not match the digest sent with them; send them again."""


class TooLarge(OneBertError, status=413, code="too-large", title="Too large"):
    """The body, its values (2048 in JSON), the delta file, the answer or the work to explain it exceeds its limit."""


class InvalidInput(OneBertError, status=422, code="invalid-input", title="Invalid input"):
    """The request breaks a rule; see `errors`."""


class UnsupportedTask(InvalidInput, code="unsupported-task", title="Unsupported task"):
    """The other server's format cannot express this task's answers."""


class NotFound(OneBertError, status=404):
    """Something named does not exist."""


class TaskNotFound(NotFound, code="task-not-found", title="No such task"):
    """No task has this name, or none that this key may see."""


class VersionNotFound(NotFound, code="version-not-found", title="No such version"):
    """The task has no such version."""


class AliasNotFound(NotFound, code="alias-not-found", title="No such alias"):
    """The task has no such alias."""


class GateNotFound(NotFound, code="gate-not-found", title="No gate"):
    """The task has no gate."""


class SampleNotFound(NotFound, code="sample-not-found", title="No such answer"):
    """No answer with this id is kept, or none of a task that this key may see."""


class KeyNotFound(NotFound, code="key-not-found", title="No such key"):
    """No key has this id."""


class AliasConflict(OneBertError, status=412, code="alias-conflict", title="The alias has moved"):
    """The alias is not where the condition says."""


class CheckOutdated(AliasConflict):
    """A rule for the move has changed since it was checked."""


class ChangeUnknown(OneBertError, status=412, code="change-unknown", title="No such change"):
    """The registry does not have the change of `OneBERT-Min-Seq`: it was restored, or is another one."""


class VersionInUse(OneBertError, status=409, code="version-in-use", title="Version in use"):
    """An alias points at the version."""


class GateFailed(OneBertError, status=409, code="gate-failed", title="The gate refuses"):
    """The version does not pass the task's gate; `report` has each check.

    Without `report` the gate could not run: it has no live version to compare with, or lacks its rows.
    """

    def __init__(self, detail: str, report: Mapping[str, Any] | None = None, failed: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.report = report
        # A phrase for each check that failed.
        self.failed = failed or [detail]


class NoAdmin(OneBertError, status=409, code="no-admin", title="Nobody would administer"):
    """The first key ends access without one, and this one is no admin's: make one with `admin` for `*` first."""


class SamplesKeyNeeded(OneBertError, status=409, code="samples-key-needed", title="No key for texts"):
    """`ONEBERT_SAMPLES_KEY` is not set, or lacks the key that kept texts were encrypted with."""


class TrainerOff(OneBertError, status=409, code="trainer-off", title="No trainer"):
    """The server was started without `ONEBERT_TRAINER`."""


class TrainerFailed(OneBertError, status=503, code="trainer-failed", title="The trainer ended", retry_after=5):
    """The training process ended, and is started again."""


class VersionUnavailable(OneBertError, status=503, code="version-unavailable", title="Version unavailable"):
    """The version cannot be loaded; `Retry-After`, if present, is the time of the next try."""


class StoreLocked(OneBertError, status=503, code="store-locked", title="Store in use"):
    """Another process owns the store's folder."""


class StoreCorrupt(OneBertError, code="store-corrupt", title="Store is damaged"):
    """A stored file, or its row in the registry, is missing or damaged."""


class StorageUnavailable(
    OneBertError, status=503, code="storage-unavailable", title="Storage does not work", retry_after=5
):
    """The disk, the database or the bucket fails; nothing was changed."""


class BlobsAway(StorageUnavailable):
    """The place of all blobs does not answer as it should, which says nothing about any one of them."""


class StorageFull(OneBertError, status=507, code="storage-full", title="Storage is full"):
    """The disk is full."""


class BankFull(OneBertError, status=507, code="bank-full", title="No memory for another version"):
    """The version is larger than all of `ONEBERT_BANK_BYTES`, or every version in memory is in use."""


class QueueFull(OneBertError, status=503, code="queue-full", title="Too much work is waiting", retry_after=1):
    """The answer would come after the request's time, or a limit is reached.

    Limits: 8,388,608 characters to tokenize; 64 uploads; 64 requests with examples; 1,024 requests that
    wait for a change; 512 MiB of untaken answers over 64 KiB; 128 MiB of incomplete bodies.
    `Retry-After` estimates the wait.
    """


class OverShare(OneBertError, status=429, code="over-share", title="Over the caller's share", retry_after=1):
    """The queue is full, and this caller holds more of it than others, who are still admitted."""


class DeadlineExceeded(OneBertError, status=504, code="deadline-exceeded", title="Too late"):
    """The answer did not come within the request's time."""


class Starting(OneBertError, status=503, code="starting", title="Starting", retry_after=1):
    """The server loads its base and its versions."""


class ShuttingDown(OneBertError, status=503, code="shutting-down", title="Shutting down", retry_after=5):
    """The server is stopping."""


class Unhealthy(OneBertError, status=503, code="unhealthy", title="Unhealthy"):
    """The engine is dead, or hangs for a minute, or has failed ten batches in a row: only a restart helps."""


class HeaderNeeded(OneBertError, status=503, code="header-needed", title="A header is needed"):
    """Aliases choose by headers, named in the detail, that a front end did not send along; it asks once more."""


class RowGone(OneBertError, status=503, code="row-gone", title="The row is gone", retry_after=1):
    """The version's row has left memory, or its task has changed, since the edge resolved the reference."""


class EngineFailed(OneBertError, code="engine-failed", title="The engine failed"):
    """The request's own forward pass failed; the next request may succeed."""


class AnswerNotFinite(OneBertError, status=422, code="answer-not-finite", title="The answer is not finite"):
    """The task answers this input with NaN or infinity; with several tasks only its own result is an error."""


class Unauthorized(OneBertError, status=401, code="unauthorized", title="API key needed"):
    """No valid API key."""


class Forbidden(OneBertError, status=403, code="forbidden", title="Not allowed with this key"):
    """The key's scopes do not allow this, or this needs a key for all tasks."""


class OverQuota(OneBertError, status=429, code="over-quota", title="Over the quota"):
    """The caller's quota of requests or tokens (with `Retry-After`), or of stored tasks or bytes, is used up."""


class TooManyAttempts(OneBertError, status=429, code="too-many-attempts", title="Too many attempts"):
    """Requests without a valid key from this address exceed 100 at once, 10 a second; known keys and tokens pass."""


class UnsupportedBase(OneBertError, status=422, code="unsupported-base", title="Unsupported base"):
    """The model's architecture or weights are not ones that OneBERT serves."""


class BaseNotFound(OneBertError, status=404, code="base-not-found", title="Base not found"):
    """The base is neither a folder, nor cached, nor reachable."""


class InvalidMethod(OneBertError, status=422, code="invalid-method", title="Invalid method"):
    """A method string that the grammar does not accept, or that the base cannot take."""


class InvalidData(OneBertError, status=422, code="invalid-data", title="Invalid data"):
    """Training or evaluation data that cannot be used."""


class InvalidSettings(OneBertError, status=422, code="invalid-settings", title="Invalid settings"):
    """Settings that contradict each other or are unsafe."""


class ServerUnreachable(OneBertError, status=503, code="server-unreachable", title="Server unreachable"):
    """The client got no answer."""
