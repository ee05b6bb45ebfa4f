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
    segment_ms: int = 0
    retain_duplicates: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"name {self.name!r:.80} of a window store; use up to 200 letters, digits, '.', "
                "'_' and '-', and no '.' at the beginning"
            )
        for name in ("retention_ms", "segment_ms"):
            span_ms = getattr(self, name)
            if not isinstance(span_ms, int) or not 0 <= span_ms <= TIME_MAX_MS:
                raise InvalidSetting(
                    f"store {self.name}: {name} is {span_ms!r:.40}; give whole milliseconds, from "
                    f"0 to {TIME_MAX_MS}"
                )
        if self.segment_ms == 0:
            default_ms = max(self.retention_ms // 2, SEGMENT_MS_MIN_DEFAULT)
            object.__setattr__(self, "segment_ms", default_ms)
