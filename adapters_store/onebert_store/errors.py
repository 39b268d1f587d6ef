"""Every error a user can meet; the edges (HTTP, command line) turn errors into answers.

One file although it is long: the tree below is what a reader looks for, and each class is only its row of that tree.

    OneBertError                      500  internal
    ├── InvalidDelta                  422  (abstract)
    │   ├── MalformedFile             422  malformed-file        not the layout of FORMAT.md
    │   ├── InvalidManifest           422  invalid-manifest      the JSON manifest breaks a rule
    │   ├── TensorMismatch            422  tensor-mismatch       unknown, missing or misshapen tensors
    │   ├── NotFinite                 422  not-finite            NaN or infinity in a tensor or a golden answer
    │   ├── BaseMismatch              422  base-mismatch         made for another base
    │   ├── GoldenMismatch            422  golden-mismatch       served logits are not the trainer's
    │   └── DigestMismatch            422  digest-mismatch       the bytes are not those that the sender meant
    ├── TooLarge                      413  too-large
    ├── InvalidInput                  422  invalid-input         a text, a name, a number out of its bounds
    │   └── UnsupportedTask           422  unsupported-task      a client's format has no form for the task's answers
    ├── NotFound                      404  (abstract)
    │   ├── TaskNotFound              404  task-not-found
    │   ├── VersionNotFound           404  version-not-found
    │   ├── AliasNotFound             404  alias-not-found
    │   └── KeyNotFound               404  key-not-found
    ├── AliasConflict                 412  alias-conflict        the alias is not where If-Match says
    ├── ChangeUnknown                 412  change-unknown        the registry has no change with the number asked for
    ├── VersionInUse                  409  version-in-use        an alias points at the version
    ├── TaskExists                    409  task-exists           the new name of a task is in use, or was
    ├── VersionUnavailable            503  version-unavailable   registered, but could not be loaded
    ├── StoreLocked                   503  store-locked          another process owns the folder
    ├── StoreCorrupt                  500  store-corrupt         a blob or a row is missing or damaged
    ├── StorageUnavailable            503  storage-unavailable   the disk cannot be read or written; with Retry-After
    │   └── BlobsAway                 503  storage-unavailable   the bucket of all blobs is away, slow or wrong
    ├── StorageFull                   507  storage-full
    ├── BankFull                      507  bank-full             no memory is left for another version's row
    ├── QueueFull                     503  queue-full            with Retry-After
    ├── OverShare                     429  over-share            with Retry-After
    ├── DeadlineExceeded              504  deadline-exceeded     the time that the caller gives is over
    ├── Starting                      503  starting              with Retry-After
    ├── ShuttingDown                  503  shutting-down         with Retry-After
    ├── Unhealthy                     503  unhealthy             the engine is dead or hangs
    ├── EngineFailed                  500  engine-failed         the forward pass raised
    ├── WholeTextNeeded               500  whole-text-needed     (between processes) a text was sent without its end
    ├── AnswerNotFinite               422  answer-not-finite     a served task gave NaN or infinity
    ├── Unauthorized                  401  unauthorized
    ├── Forbidden                     403  forbidden             the key is not for this
    ├── OverQuota                     429  over-quota            more than the principal may; of a rate with Retry-After
    ├── TooManyAttempts               429  too-many-attempts     wrong keys from one address, with Retry-After
    ├── UnsupportedBase               422  unsupported-base      architecture or weights we do not serve
    ├── BaseNotFound                  404  base-not-found
    ├── InvalidMethod                 422  invalid-method        the method grammar
    ├── InvalidData                   422  invalid-data          training or evaluation data
    ├── InvalidSettings               422  invalid-settings
    └── ServerUnreachable             503  server-unreachable    (client)

Inner code raises these errors and knows nothing of HTTP; an edge reads
`status`, `code`, `title`, `detail` and `retry_after`.
"""

from typing import ClassVar


class OneBertError(Exception):
    """Root of the tree; `detail` is one sentence a user can act on and never holds a path or a user's text.

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
        for name, own in {"status": status, "code": code, "title": title, "retry_after": retry_after}.items():
            if own:
                setattr(cls, name, own)

    def __init__(self, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after or self.retry_after


class InvalidDelta(OneBertError, status=422):
    """A delta that is refused; nothing of it is stored."""


class MalformedFile(InvalidDelta, code="malformed-file", title="Malformed delta file"):
    """The bytes do not follow the layout of FORMAT.md."""


class InvalidManifest(InvalidDelta, code="invalid-manifest", title="Invalid manifest"):
    """The manifest is not the JSON object that FORMAT.md describes."""


class TensorMismatch(InvalidDelta, code="tensor-mismatch", title="Tensors do not fit"):
    """A tensor is unknown, missing or has the wrong shape for the base."""


class NotFinite(InvalidDelta, code="not-finite", title="Numbers are not finite"):
    """A tensor of a delta, or an answer that proves it, has a NaN or an infinity."""


class BaseMismatch(InvalidDelta, code="base-mismatch", title="Another base"):
    """The delta was trained on another base."""


class GoldenMismatch(InvalidDelta, code="golden-mismatch", title="Golden logits do not agree"):
    """The logits computed here are not those the trainer recorded."""


class DigestMismatch(InvalidDelta, code="digest-mismatch", title="Digests differ"):
    """The bytes that arrived do not have the digest that their sender gave for them."""


class TooLarge(OneBertError, status=413, code="too-large", title="Too large"):
    """A file or a request is over its size limit."""


class InvalidInput(OneBertError, status=422, code="invalid-input", title="Invalid input"):
    """A text, a name or a number that a request may not hold."""


class UnsupportedTask(InvalidInput, code="unsupported-task", title="Unsupported task"):
    """The format that a client asks in has no form for the answers of the task."""


class NotFound(OneBertError, status=404):
    """Something named does not exist."""


class TaskNotFound(NotFound, code="task-not-found", title="No such task"):
    """No task has this name."""


class VersionNotFound(NotFound, code="version-not-found", title="No such version"):
    """The task has no version with this number."""


class AliasNotFound(NotFound, code="alias-not-found", title="No such alias"):
    """The task has no alias with this name."""


class KeyNotFound(NotFound, code="key-not-found", title="No such key"):
    """No key has this id."""


class AliasConflict(OneBertError, status=412, code="alias-conflict", title="The alias has moved"):
    """Compare-and-set found the alias somewhere else."""


class ChangeUnknown(OneBertError, status=412, code="change-unknown", title="No such change"):
    """The registry has no change with the number that a request wants to be seen."""


class VersionInUse(OneBertError, status=409, code="version-in-use", title="Version in use"):
    """A version cannot be deleted while an alias points at it."""


class TaskExists(OneBertError, status=409, code="task-exists", title="The name is taken"):
    """A task cannot take a name under which there are versions, or were: `name@3` would mean two things."""


class VersionUnavailable(OneBertError, status=503, code="version-unavailable", title="Version unavailable"):
    """The version is registered, but this server could not load it."""


class StoreLocked(OneBertError, status=503, code="store-locked", title="Store in use"):
    """Another process owns the store's folder."""


class StoreCorrupt(OneBertError, code="store-corrupt", title="Store is damaged"):
    """The store is damaged: a blob is missing or does not have its digest, a row or the database cannot be read."""


class StorageUnavailable(
    OneBertError, status=503, code="storage-unavailable", title="Storage does not work", retry_after=5
):
    """The disk or the database under the store refuses to work (an I/O error, a read-only file system, a lock)."""


class BlobsAway(StorageUnavailable):
    """The place of all blobs does not answer as it should, which says nothing about any one of them."""


class StorageFull(OneBertError, status=507, code="storage-full", title="Storage is full"):
    """The disk has no room for a write."""


class BankFull(OneBertError, status=507, code="bank-full", title="No memory for another version"):
    """The rows in memory leave no room for another one."""


class QueueFull(OneBertError, status=503, code="queue-full", title="Too much work is waiting", retry_after=1):
    """The engine has as much waiting work as it may hold."""


class OverShare(OneBertError, status=429, code="over-share", title="Over the caller's share", retry_after=1):
    """Too much work waits, and more of this caller than of the others."""


class DeadlineExceeded(OneBertError, status=504, code="deadline-exceeded", title="Too late"):
    """The answer did not come within the time that the caller, or the server's settings, give it."""


class Starting(OneBertError, status=503, code="starting", title="Starting", retry_after=1):
    """The server has its address, and loads what it will answer with."""


class ShuttingDown(OneBertError, status=503, code="shutting-down", title="Shutting down", retry_after=5):
    """The server finishes what it has and takes nothing new."""


class Unhealthy(OneBertError, status=503, code="unhealthy", title="Unhealthy"):
    """The process lives, but its engine is dead, hangs or fails: only a restart helps."""


class WholeTextNeeded(OneBertError, code="whole-text-needed", title="The whole text is needed"):
    """A text is read in windows to its end, and was sent without it; who sent it sends all of it."""


class EngineFailed(OneBertError, code="engine-failed", title="The engine failed"):
    """The forward pass raised; the batch is lost, the engine goes on."""


class AnswerNotFinite(OneBertError, status=422, code="answer-not-finite", title="The answer is not finite"):
    """A served task answered one input with a NaN or an infinity; its weights are the reason, whoever uploaded them."""


class Unauthorized(OneBertError, status=401, code="unauthorized", title="API key needed"):
    """No valid API key came with the request."""


class Forbidden(OneBertError, status=403, code="forbidden", title="Not allowed with this key"):
    """The key is valid, and its scopes or tasks do not allow what was asked."""


class OverQuota(OneBertError, status=429, code="over-quota", title="Over the quota"):
    """The principal has as many tasks or bytes, or had as many requests or tokens, as it may."""


class TooManyAttempts(OneBertError, status=429, code="too-many-attempts", title="Too many attempts"):
    """An address has sent more requests without a valid key than are answered one by one."""


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
