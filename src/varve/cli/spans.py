"""Spans of time as users write them: 10m, 90s, 1h30m."""

import re
from typing import Final

from varve.foundation.errors import InvalidRequest

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"(\d{1,12})(ms|[smhdw])")


def parse_span(option: str, text: str) -> int:
    """Milliseconds; raises InvalidRequest, which names the option."""
    parts = _PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise InvalidRequest(
            f"{option} {text!r:.80} is no span of time: write numbers with ms, s, m, h, d or w, "
            "as 10m or 1h30m"
        )
    return sum(int(number) * _UNITS[unit] for number, unit in parts)
