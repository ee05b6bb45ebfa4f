"""Durations, times, sizes and counts as people write and read them. Times are UTC."""

import re
from datetime import UTC, datetime
from typing import Final

from varve.foundation.errors import InvalidRequest

_DURATION_UNITS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DURATION_PART: Final = re.compile(r"(\d{1,12})(ms|[smhdw])")
_DISPLAY_UNITS: Final = (
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1000),
    ("ms", 1),
)
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(?:([kKmMgGtTpP])(i)?)?[bB]?")
_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_duration(text: str, *, name: str) -> int:
    """Milliseconds of `10m`, `90s` or `1h30m`; raises InvalidRequest, which names the option."""
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise InvalidRequest(
            f"{name} {text!r:.80} is not a duration: write numbers with ms, s, m, h, d or w, as "
            "10m or 1h30m"
        )
    return sum(int(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_time(text: str, *, name: str) -> int:
    """Milliseconds since 1970 of a number, `@number` or an ISO 8601 time, UTC unless it has a zone.

    Raises InvalidRequest, which names the option.
    """
    stripped = text.strip()
    if re.fullmatch(r"@?-?[0-9]{1,19}", stripped):
        return int(stripped.removeprefix("@"))
    try:
        time = datetime.fromisoformat(stripped)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return round(time.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest(
            f"{name} {text!r:.80} is not a time: write milliseconds since 1970, or a date and time "
            "such as 2026-03-01T12:00:00, which is UTC"
        ) from None


def parse_size(text: str, *, name: str) -> int:
    """Bytes of `500`, `64MiB` or `1.5 GB`; raises InvalidRequest, which names the option.

    `KiB`, `MiB`, … are powers of 1024, `kB`, `MB`, … powers of 1000.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(
            f"{name} {text!r:.80} is not a size: write bytes, or a number with KiB, MiB, GiB, kB, "
            "MB or GB, as 64MiB"
        )
    number, prefix, binary = match.groups()
    base = 1024.0 if binary else 1000.0
    return round(float(number) * base ** " kmgtp".index((prefix or " ").lower()))


def format_duration(milliseconds: int) -> str:
    """A duration in its largest unit, with the next smaller one where the number is small."""
    for index, (unit, size) in enumerate(_DISPLAY_UNITS):
        count, remainder = divmod(milliseconds, size)
        if not count:
            continue
        if count >= 10 or index + 1 == len(_DISPLAY_UNITS):
            return f"{count} {unit}"
        smaller_unit, smaller_size = _DISPLAY_UNITS[index + 1]
        smaller = remainder // smaller_size
        return f"{count} {unit}" + (f" {smaller} {smaller_unit}" if smaller else "")
    return "0 ms"


def format_time(time_ms: int) -> str:
    """A time as `2026-03-01T12:00:00.000Z`; `@number` if datetime cannot represent it."""
    try:
        time = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"@{time_ms}"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def format_bytes(size: float) -> str:
    """A size in its largest unit: `1.5 MiB`."""
    number = 0
    while size >= 1024 and number + 1 < len(_SIZE_UNITS):
        size /= 1024
        number += 1
    return f"{size:.0f} B" if number == 0 else f"{size:.1f} {_SIZE_UNITS[number]}"


def format_moment(time_ms: int | None, now_ms: int) -> str:
    """A time and its distance from now: `2026-03-01 12:00:00Z (2 h ago)`; `-` for none."""
    if time_ms is None or time_ms < 0:
        return "-"
    try:
        text = f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"@{time_ms}"
    if time_ms == now_ms:
        return f"{text} (now)"
    distance = format_duration(abs(time_ms - now_ms))
    return f"{text} ({f'in {distance}' if time_ms > now_ms else f'{distance} ago'})"


def format_due(time_ms: int | None, now_ms: int) -> str:
    """When something can happen: `now` if it is due, `-` if the time is unknown."""
    if time_ms is None:
        return "-"
    return "now" if time_ms <= now_ms else format_moment(time_ms, now_ms)


def format_count(count: int, noun: str) -> str:
    """A count with its noun: `1 segment`, `2,000 segments`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
