"""Every way a request can fail.

PatchloomError
    InvalidArgument             the request cannot be answered as it is
        InvalidMessage          a message, part or option is malformed
        UnsupportedContent      a part, source or format that this service or model does not take
        InvalidImage            bytes that do not decode as the image they claim to be
        InvalidAudio            bytes that are no readable audio clip
        LimitExceeded           more than a configured limit allows
        TemplateRefused         the chat template cannot carry this conversation
        ContractViolation       items and slots do not pair one to one
        LiteralRefused          a control token in text, where the policy is to refuse it
        SizeRefused             an image size that the family's rule does not allow
        MediaNotFound           an URL that answers that there is nothing
        DuplicateRequest        a stream's second request under an id in flight; the first goes on
    NotFound
        ModelNotFound           no model of that name is served
        ContentKeyNotFound      a content key that is not in the cache
    FailedPrecondition
        FetchDisabled           an URL, where fetching is off or its host not allowed
        AddressRefused          an URL that leads to an address that is not public
        FingerprintMismatch     the server's settings are not those that the client expects
        StaleHandle             a lease that ended, or was never this server's
    ResourceExhausted
        QueueFull               too much work waiting
        OutOfMemory             a pool is full
        MessageTooLarge         a message over the transport's limit
    Unavailable
        UpstreamUnavailable     the host of an URL fails
        Draining                the server is shutting down
        WorkerLost              a worker died with the request
    DeadlineExceeded            the time given was over
    Cancelled                   the caller took it back
    Unauthenticated             no valid identity
    PermissionDenied            an identity without the right
    Unimplemented               a call that the server does not have
    Internal                    our own fault
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PatchloomError(Exception):
    """Base of all errors: where (`field_path`), what and what is allowed (`message`), a stable `reason`."""

    reason = "INTERNAL"

    def __init__(self, message: str, field_path: str = "") -> None:
        super().__init__(f"{field_path}: {message}" if field_path else message)
        self.message = message
        self.field_path = field_path

    def at(self, field_path: str) -> "PatchloomError":
        """The same error at a place, for code that knows what is wrong but not where."""
        return type(self)(self.message, field_path)


class InvalidArgument(PatchloomError):
    reason = "INVALID_ARGUMENT"


class InvalidMessage(InvalidArgument):
    reason = "INVALID_MESSAGE"


class UnsupportedContent(InvalidArgument):
    reason = "UNSUPPORTED_CONTENT"


class InvalidImage(InvalidArgument):
    reason = "INVALID_IMAGE"


class InvalidAudio(InvalidArgument):
    reason = "INVALID_AUDIO"


class LimitExceeded(InvalidArgument):
    reason = "LIMIT_EXCEEDED"


class TemplateRefused(InvalidArgument):
    reason = "TEMPLATE_REFUSED"


class ContractViolation(InvalidArgument):
    reason = "CONTRACT_VIOLATION"


class LiteralRefused(InvalidArgument):
    reason = "LITERAL_REFUSED"


class SizeRefused(InvalidArgument):
    reason = "SIZE_REFUSED"


class MediaNotFound(InvalidArgument):
    reason = "MEDIA_NOT_FOUND"


class DuplicateRequest(InvalidArgument):
    reason = "DUPLICATE_REQUEST"


class NotFound(PatchloomError):
    reason = "NOT_FOUND"


class ModelNotFound(NotFound):
    reason = "MODEL_NOT_FOUND"


class ContentKeyNotFound(NotFound):
    """Carries every missing key, so that the client sends all their bytes at once."""

    reason = "CONTENT_KEY_NOT_FOUND"

    def __init__(self, message: str, field_path: str = "", keys: tuple[str, ...] = ()) -> None:
        super().__init__(message, field_path)
        self.keys = keys


class FailedPrecondition(PatchloomError):
    reason = "FAILED_PRECONDITION"


class FetchDisabled(FailedPrecondition):
    reason = "FETCH_DISABLED"


class AddressRefused(FailedPrecondition):
    reason = "ADDRESS_REFUSED"


class FingerprintMismatch(FailedPrecondition):
    reason = "FINGERPRINT_MISMATCH"


class StaleHandle(FailedPrecondition):
    reason = "STALE_HANDLE"


class ResourceExhausted(PatchloomError):
    """`retry_after` is a hint in seconds, None where waiting does not help."""

    reason = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, field_path: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, field_path)
        self.retry_after = retry_after


class QueueFull(ResourceExhausted):
    reason = "QUEUE_FULL"


class OutOfMemory(ResourceExhausted):
    reason = "OUT_OF_MEMORY"


class MessageTooLarge(ResourceExhausted):
    reason = "MESSAGE_TOO_LARGE"


class Unavailable(PatchloomError):
    reason = "UNAVAILABLE"


class UpstreamUnavailable(Unavailable):
    reason = "UPSTREAM_UNAVAILABLE"


class Draining(Unavailable):
    reason = "DRAINING"


class WorkerLost(Unavailable):
    reason = "WORKER_LOST"


class DeadlineExceeded(PatchloomError):
    reason = "DEADLINE_EXCEEDED"


class Cancelled(PatchloomError):
    reason = "CANCELLED"


class Unauthenticated(PatchloomError):
    reason = "UNAUTHENTICATED"


class PermissionDenied(PatchloomError):
    reason = "PERMISSION_DENIED"


class Unimplemented(PatchloomError):
    reason = "UNIMPLEMENTED"


class Internal(PatchloomError):
    reason = "INTERNAL"


@contextmanager
def errors_at(field_path: str) -> Iterator[None]:
    """Errors of the block name this place, unless they name one."""
    try:
        yield
    except PatchloomError as error:
        raise (error if error.field_path else error.at(field_path)) from error
