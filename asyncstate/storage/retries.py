"""Which failures of an object store pass, and trying again.

Owns: Retries and ``is_passing``. Invariant: attempts and total time are bounded, and only what can be repeated
without harm is: reads, deletes, and writes of a whole object under its own name. Must not import pyarrow.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import stamina

T = TypeVar("T")

_WAIT_FIRST_SECONDS: Final = 0.1
_WAIT_MAX_SECONDS: Final = 10.0
_LASTING_KINDS: Final = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
# An error number comes from this machine: the network may recover, a full or read-only disk does not.
_PASSING_NUMBERS: Final = frozenset(
    getattr(errno, name)
    for name in (
        *("EAGAIN", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EINTR", "EIO"),
        *("ENETDOWN", "ENETUNREACH", "EPIPE", "ETIMEDOUT"),
    )
)
# What S3, GCS and Azure name, in pyarrow's texts, when asking again cannot help.
_LASTING_TEXTS: Final = re.compile(
    r"ACCESS_DENIED|PERMISSION_DENIED|UNAUTHENTICATED|MISSING_AUTHENTICATION|SIGNATURE_DOES_NOT_MATCH|"
    r"INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|INVALID_SIGNATURE|UNRECOGNIZED_CLIENT|OPT_IN_REQUIRED|"
    r"NO_SUCH_|NOT_FOUND|INVALID_ARGUMENT|VALIDATION|HTTP status 4(?!08|29)\d\d|"
    r"Authentication\w*Failed|Authorization\w*(Failure|Mismatch)|ContainerNotFound|\b40[134]\b"
)


def is_passing(error: BaseException) -> bool:
    """Tell whether trying again may help: a timeout, throttling, a failing server or connection."""
    if not isinstance(error, OSError) or isinstance(error, _LASTING_KINDS):
        return False
    if error.errno is not None:
        return error.errno in _PASSING_NUMBERS
    return _LASTING_TEXTS.search(str(error)) is None


@dataclass(frozen=True, slots=True)
class Retries:
    """At most ``attempts`` tries, none begun later than ``timeout_seconds`` after the first.

    The waits between grow from 0.1 to 10 seconds, with jitter.
    """

    attempts: int = 5
    timeout_seconds: float = 60.0

    def call(self, action: Callable[[], T]) -> T:
        """Return the result of the first try that succeeds; raises what the last one raised."""
        for attempt in stamina.retry_context(
            on=is_passing,
            attempts=self.attempts,
            timeout=self.timeout_seconds,
            wait_initial=_WAIT_FIRST_SECONDS,
            wait_max=_WAIT_MAX_SECONDS,
        ):
            with attempt:
                return action()
        raise AssertionError("unreachable: the last try returns or raises")
