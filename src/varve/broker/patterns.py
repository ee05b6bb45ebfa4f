"""Regular expressions that clients send, in the syntax of RE2, as in Kafka.

Invariant  matching takes linear time; Python's own engine may take exponential time.
Threads    any; long lists of names are matched off the loop.
"""

from collections.abc import Iterable
from typing import Final

from varve.wire import ErrorCode
from varve.wire.errors import KafkaError

PATTERN_LENGTH_MAX: Final = 4_096


def find_matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that the pattern matches as a whole; raises KafkaError for an invalid one."""
    # A C++ library that few brokers need: only clients that subscribe by pattern load it.
    import re2

    if len(pattern) > PATTERN_LENGTH_MAX:
        raise _invalid(pattern, f"it has more than {PATTERN_LENGTH_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        raise _invalid(pattern, _reason(error)) from error
    return frozenset(name for name in names if compiled.fullmatch(name) is not None)


def _reason(error: Exception) -> str:
    """RE2 gives its messages as bytes."""
    (reason,) = error.args or ("",)
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _invalid(pattern: str, reason: str) -> KafkaError:
    shown = pattern if len(pattern) <= 100 else f"{pattern[:100]}..."
    message = f"the regular expression {shown!r} is not valid: {reason:.200}"
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
