"""How partitions of a deduplication are shown: a table with a line of sums, or JSON lines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from varve.foundation.units import format_bytes, format_time

if TYPE_CHECKING:
    from varve.dedup.rules import Counts

_COUNTS: Final = {
    "kept": "kept",
    "duplicates": "duplicates",
    "late": "late",
    "future": "future",
    "missing": "no time",
    "no_id": "no id",
}
_NONE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition; figures of the state are None where nobody looked."""

    partition: int
    position: int
    lag: int
    stream_time_ms: int
    counts: "Counts"
    segments: int | None = None
    ids: int | None = None
    bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        told = asdict(self)
        counts = told.pop("counts")
        if self.segments is None:
            told = {name: value for name, value in told.items() if name not in _STATE}
        return {**told, "records": self.counts.total, **counts}


_STATE: Final = ("segments", "ids", "bytes")


def print_rows(rows: Sequence[PartitionRow]) -> None:
    """A line for each partition, and one of sums where there are several; none is broken."""
    has_state = any(row.segments is not None for row in rows)
    columns = ["partition", "position", "lag", "stream time", "records", *_COUNTS.values()]
    columns += ["segments", "ids", "size"] if has_state else []
    lines = [columns, *(_cells(row, has_state=has_state) for row in rows)]
    if len(rows) > 1:
        lines.append(_sums(rows, has_state=has_state))
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        text = "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        typer.secho(text, bold=number == 0 or None)


def _cells(row: PartitionRow, *, has_state: bool) -> list[str]:
    counts = asdict(row.counts)
    cells = [str(row.partition), f"{row.position:,}", f"{row.lag:,}", tell_time(row.stream_time_ms)]
    cells += [f"{number:,}" for number in (row.counts.total, *(counts[one] for one in _COUNTS))]
    return [*cells, *(_state_cells(row.segments, row.ids, row.bytes) if has_state else ())]


def _sums(rows: Sequence[PartitionRow], *, has_state: bool) -> list[str]:
    counts = [asdict(row.counts) for row in rows]
    numbers = [sum(row.counts.total for row in rows)]
    numbers += [sum(count[name] for count in counts) for name in _COUNTS]
    cells = ["all", "", f"{sum(row.lag for row in rows):,}", ""]
    cells += [f"{number:,}" for number in numbers]
    if not has_state:
        return cells
    return [*cells, *_state_cells(*(_sum([getattr(row, one) for row in rows]) for one in _STATE))]


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _state_cells(segments: int | None, ids: int | None, size: int | None) -> list[str]:
    cells = [_NONE if one is None else f"{one:,}" for one in (segments, ids)]
    return [*cells, _NONE if size is None else format_bytes(size)]


def tell_time(time_ms: int) -> str:
    """A time in UTC; `-` before there is one."""
    return _NONE if time_ms < 0 else format_time(time_ms)
