"""The log of a store's writes, from which it is restored.

Invariant  holds every write since its start offset, in order; offsets may have holes.
Threads    one writer at a time; reading needs no lock.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from varve.foundation.errors import OffsetOutOfRange
from varve.rocks.database import Put


class LoggedWrite(NamedTuple):
    """One write: composite key, value or None for a deletion, and the entry's time."""

    key: bytes
    value: bytes | None
    time_ms: int


class ChangelogBatch(NamedTuple):
    """Writes as they were read, and the offset at which to go on behind them."""

    puts: list[Put]
    next_offset: int


class Changelog(Protocol):
    """Where the writes of one store go, and come from again."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def end_offset(self) -> int:
        """The offset that the next write gets."""

    @property
    def write_bytes_max(self) -> int:
        """The largest key and value together that it takes."""

    def append(self, writes: Sequence[LoggedWrite]) -> int:
        """Append in order; gives the end offset."""

    def flush(self) -> None:
        """What was appended is on disk after this."""

    def read(self, start_offset: int) -> Iterator[ChangelogBatch]:
        """From an offset to where the log ends now; `OffsetOutOfRange` for one outside it."""


class MemoryChangelog:
    """A changelog in memory, for tests."""

    def __init__(self, *, batch_count_max: int = 1_000) -> None:
        self._writes: list[LoggedWrite] = []
        self._batch_count_max = batch_count_max
        self.start_offset = 0
        self.write_bytes_max = 1 << 30

    @property
    def end_offset(self) -> int:
        return len(self._writes)

    def append(self, writes: Sequence[LoggedWrite]) -> int:
        self._writes.extend(writes)
        return self.end_offset

    def flush(self) -> None:
        """Nothing to do: it lives as long as the process."""

    def read(self, start_offset: int) -> Iterator[ChangelogBatch]:
        check_offset(self, start_offset, "the changelog in memory")
        return self._batches(start_offset, self.end_offset)

    def _batches(self, start: int, end: int) -> Iterator[ChangelogBatch]:
        while start < end:
            next_offset = min(start + self._batch_count_max, end)
            writes = self._writes[start:next_offset]
            yield ChangelogBatch([(write.key, write.value) for write in writes], next_offset)
            start = next_offset


def check_offset(changelog: Changelog, offset: int, where: str) -> None:
    """Raises `OffsetOutOfRange` unless a read may begin there."""
    if not changelog.start_offset <= offset <= changelog.end_offset:
        raise OffsetOutOfRange(
            f"{where}: offset {offset} is outside {changelog.start_offset} to "
            f"{changelog.end_offset}; restore from the start"
        )
