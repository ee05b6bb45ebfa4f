"""Settings of a window store.

Invariant  an instance that exists is valid.
"""

import re
from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import InvalidSetting
from varve.windows.entries import TIME_MAX_MS

SEGMENT_MS_MIN_DEFAULT: Final = 60_000
"""As in Kafka Streams, whose default is the greater of this and half the retention."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """A store's name, its times, and whether it keeps several values of one key and time.

    A `segment_ms` of 0 becomes half the retention, but at least a minute.
    """

    name: str
    retention_ms: int
    window_ms: int = 0
    segment_ms: int = 0
    retain_duplicates: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"name {self.name!r:.80} of a window store; use up to 200 letters, digits, '.', "
                "'_' and '-', and no '.' at the beginning"
            )
        for name in ("retention_ms", "window_ms", "segment_ms"):
            self._check_span(name, getattr(self, name))
        if self.retention_ms < 0 or not 0 <= self.window_ms <= self.retention_ms:
            raise InvalidSetting(
                f"store {self.name}: window_ms {self.window_ms} must lie between 0 and "
                f"retention_ms {self.retention_ms}"
            )
        if self.segment_ms < 0:
            raise InvalidSetting(
                f"store {self.name}: segment_ms {self.segment_ms} must be at least 1, or 0 for "
                "half the retention"
            )
        if self.segment_ms == 0:
            default_ms = max(self.retention_ms // 2, SEGMENT_MS_MIN_DEFAULT)
            object.__setattr__(self, "segment_ms", default_ms)

    def _check_span(self, name: str, span_ms: int) -> None:
        if not isinstance(span_ms, int) or span_ms > TIME_MAX_MS:
            raise InvalidSetting(
                f"store {self.name}: {name} is {span_ms!r:.40}; give whole milliseconds, up to "
                f"{TIME_MAX_MS}"
            )
