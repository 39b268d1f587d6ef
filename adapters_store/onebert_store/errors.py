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


class OneBertError(Exception):
    """Root of the tree; `detail` is one sentence a user can act on and never holds a path or a user's text."""

    status: int = 500
    code: str = "internal"
    title: str = "Internal error"
    retry_after: int | None = None

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class InvalidDelta(OneBertError):
    """A delta that is refused; nothing of it is stored."""

    status = 422


class MalformedFile(InvalidDelta):
    """The bytes do not follow the layout of FORMAT.md."""

    code = "malformed-file"
    title = "Malformed delta file"


class InvalidManifest(InvalidDelta):
    """The manifest is not the JSON object that FORMAT.md describes."""

    code = "invalid-manifest"
    title = "Invalid manifest"


class TensorMismatch(InvalidDelta):
    """A tensor is unknown, missing or has the wrong shape for the base."""

    code = "tensor-mismatch"
    title = "Tensors do not fit"


class NotFinite(InvalidDelta):
    """A tensor of a delta, or an answer that proves it, has a NaN or an infinity."""

    code = "not-finite"
    title = "Numbers are not finite"


class BaseMismatch(InvalidDelta):
    """The delta was trained on another base."""

    code = "base-mismatch"
    title = "Another base"


class GoldenMismatch(InvalidDelta):
    """The logits computed here are not those the trainer recorded."""

    code = "golden-mismatch"
    title = "Golden logits do not agree"


class DigestMismatch(InvalidDelta):
    """The bytes that arrived do not have the digest that their sender gave for them."""

    code = "digest-mismatch"
    title = "Digests differ"


class TooLarge(OneBertError):
    """A file or a request is over its size limit."""

    status = 413
    code = "too-large"
    title = "Too large"


class InvalidInput(OneBertError):
    """A text, a name or a number that a request may not hold."""

    status = 422
    code = "invalid-input"
    title = "Invalid input"


class UnsupportedTask(InvalidInput):
    """The format that a client asks in has no form for the answers of the task."""

    code = "unsupported-task"
    title = "Unsupported task"


class NotFound(OneBertError):
    """Something named does not exist."""

    status = 404


class TaskNotFound(NotFound):
    """No task has this name."""

    code = "task-not-found"
    title = "No such task"


class VersionNotFound(NotFound):
    """The task has no version with this number."""

    code = "version-not-found"
    title = "No such version"


class AliasNotFound(NotFound):
    """The task has no alias with this name."""

    code = "alias-not-found"
    title = "No such alias"


class KeyNotFound(NotFound):
    """No key has this id."""

    code = "key-not-found"
    title = "No such key"


class AliasConflict(OneBertError):
    """Compare-and-set found the alias somewhere else."""

    status = 412
    code = "alias-conflict"
    title = "The alias has moved"


class ChangeUnknown(OneBertError):
    """The registry has no change with the number that a request wants to be seen."""

    status = 412
    code = "change-unknown"
    title = "No such change"


class VersionInUse(OneBertError):
    """A version cannot be deleted while an alias points at it."""

    status = 409
    code = "version-in-use"
    title = "Version in use"


class TaskExists(OneBertError):
    """A task cannot take a name under which there are versions, or were: `name@3` would mean two things."""

    status = 409
    code = "task-exists"
    title = "The name is taken"


class VersionUnavailable(OneBertError):
    """The version is registered, but this server could not load it."""

    status = 503
    code = "version-unavailable"
    title = "Version unavailable"


class StoreLocked(OneBertError):
    """Another process owns the store's folder."""

    status = 503
    code = "store-locked"
    title = "Store in use"


class StoreCorrupt(OneBertError):
    """The store is damaged: a blob is missing or does not have its digest, a row or the database cannot be read."""

    code = "store-corrupt"
    title = "Store is damaged"


class StorageUnavailable(OneBertError):
    """The disk or the database under the store refuses to work (an I/O error, a read-only file system, a lock)."""

    status = 503
    code = "storage-unavailable"
    title = "Storage does not work"
    retry_after = 5


class BlobsAway(StorageUnavailable):
    """The place of all blobs does not answer as it should, which says nothing about any one of them."""


class StorageFull(OneBertError):
    """The disk has no room for a write."""

    status = 507
    code = "storage-full"
    title = "Storage is full"


class BankFull(OneBertError):
    """The rows in memory leave no room for another one."""

    status = 507
    code = "bank-full"
    title = "No memory for another version"


class QueueFull(OneBertError):
    """The engine has as much waiting work as it may hold."""

    status = 503
    code = "queue-full"
    title = "Too much work is waiting"
    retry_after = 1


class OverShare(OneBertError):
    """Too much work waits, and more of this caller than of the others."""

    status = 429
    code = "over-share"
    title = "Over the caller's share"
    retry_after = 1


class DeadlineExceeded(OneBertError):
    """The answer did not come within the time that the caller, or the server's settings, give it."""

    status = 504
    code = "deadline-exceeded"
    title = "Too late"


class Starting(OneBertError):
    """The server has its address, and loads what it will answer with."""

    status = 503
    code = "starting"
    title = "Starting"
    retry_after = 1


class ShuttingDown(OneBertError):
    """The server finishes what it has and takes nothing new."""

    status = 503
    code = "shutting-down"
    title = "Shutting down"
    retry_after = 5


class Unhealthy(OneBertError):
    """The process lives, but its engine is dead, hangs or fails: only a restart helps."""

    status = 503
    code = "unhealthy"
    title = "Unhealthy"


class WholeTextNeeded(OneBertError):
    """A text is read in windows to its end, and was sent without it; who sent it sends all of it."""

    code = "whole-text-needed"
    title = "The whole text is needed"


class EngineFailed(OneBertError):
    """The forward pass raised; the batch is lost, the engine goes on."""

    code = "engine-failed"
    title = "The engine failed"


class AnswerNotFinite(OneBertError):
    """A served task answered one input with a NaN or an infinity; its weights are the reason, whoever uploaded them."""

    status = 422

    code = "answer-not-finite"
    title = "The answer is not finite"


class Unauthorized(OneBertError):
    """No valid API key came with the request."""

    status = 401
    code = "unauthorized"
    title = "API key needed"


class Forbidden(OneBertError):
    """The key is valid, and its scopes or tasks do not allow what was asked."""

    status = 403
    code = "forbidden"
    title = "Not allowed with this key"


class OverQuota(OneBertError):
    """The principal has as many tasks or bytes, or had as many requests or tokens, as it may."""

    status = 429
    code = "over-quota"
    title = "Over the quota"


class TooManyAttempts(OneBertError):
    """An address has sent more requests without a valid key than are answered one by one."""

    status = 429
    code = "too-many-attempts"
    title = "Too many attempts"


class UnsupportedBase(OneBertError):
    """The model's architecture or weights are not ones that OneBERT serves."""

    status = 422
    code = "unsupported-base"
    title = "Unsupported base"


class BaseNotFound(OneBertError):
    """The base is neither a folder, nor cached, nor reachable."""

    status = 404
    code = "base-not-found"
    title = "Base not found"


class InvalidMethod(OneBertError):
    """A method string that the grammar does not accept, or that the base cannot take."""

    status = 422
    code = "invalid-method"
    title = "Invalid method"


class InvalidData(OneBertError):
    """Training or evaluation data that cannot be used."""

    status = 422
    code = "invalid-data"
    title = "Invalid data"


class InvalidSettings(OneBertError):
    """Settings that contradict each other or are unsafe."""

    status = 422
    code = "invalid-settings"
    title = "Invalid settings"


class ServerUnreachable(OneBertError):
    """The client got no answer."""

    status = 503
    code = "server-unreachable"
    title = "Server unreachable"
