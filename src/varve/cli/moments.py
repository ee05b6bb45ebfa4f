"""Moments and spans of time as people read them."""

from datetime import datetime
from typing import Final

_UNITS: Final = (
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1_000),
    ("ms", 1),
)


def show_moment(timestamp: int | None, now_ms: int) -> str:
    """A moment in local time and how far off it is; `-` for none."""
    if timestamp is None or timestamp < 0:
        return "-"
    try:
        text = datetime.fromtimestamp(timestamp / 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"@{timestamp}"
    if timestamp == now_ms:
        return f"{text} (now)"
    away = show_span(abs(timestamp - now_ms))
    return f"{text} ({f'in {away}' if timestamp > now_ms else f'{away} ago'})"


def show_due(timestamp: int | None, now_ms: int) -> str:
    """When something can go: `now` for what is due, `-` where nobody knows."""
    if timestamp is None:
        return "-"
    return "now" if timestamp <= now_ms else show_moment(timestamp, now_ms)


def show_span(milliseconds: int) -> str:
    """A span in its largest unit, or two where the first is small."""
    for index, (unit, size) in enumerate(_UNITS):
        count, rest = divmod(milliseconds, size)
        if not count:
            continue
        is_exact = count >= 10 or index + 1 == len(_UNITS)
        smaller_unit, smaller_size = _UNITS[min(index + 1, len(_UNITS) - 1)]
        smaller = 0 if is_exact else rest // smaller_size
        return f"{count} {unit}" + (f" {smaller} {smaller_unit}" if smaller else "")
    return "0 ms"
