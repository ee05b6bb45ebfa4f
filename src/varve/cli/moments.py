"""Times as people read them: in UTC, with their distance from now."""

from datetime import UTC, datetime

from varve.foundation.units import format_duration


def show_moment(timestamp: int | None, now_ms: int) -> str:
    """A time in UTC and how far off it is; `-` for none."""
    if timestamp is None or timestamp < 0:
        return "-"
    try:
        text = datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"@{timestamp}"
    if timestamp == now_ms:
        return f"{text} (now)"
    away = format_duration(abs(timestamp - now_ms))
    return f"{text} ({f'in {away}' if timestamp > now_ms else f'{away} ago'})"


def show_due(timestamp: int | None, now_ms: int) -> str:
    """When something can go: `now` for what is due, `-` where nobody knows."""
    if timestamp is None:
        return "-"
    return "now" if timestamp <= now_ms else show_moment(timestamp, now_ms)
