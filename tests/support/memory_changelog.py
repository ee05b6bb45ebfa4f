"""A changelog in memory."""

from collections.abc import Iterable, Iterator, Sequence

from varve.windows.changelog import ChangelogBatch, LoggedWrite, check_offset


class MemoryChangelog:
    """Writes in a list; an offset is an index."""

    def __init__(self, writes: Iterable[LoggedWrite] = (), *, batch_count_max: int = 1_000) -> None:
        self._writes = list(writes)
        self._batch_count_max = batch_count_max
        self.start_offset = 0
        self.write_bytes_max = 1 << 30

    @property
    def writes(self) -> tuple[LoggedWrite, ...]:
        return tuple(self._writes)

    @property
    def end_offset(self) -> int:
        return len(self._writes)

    def append(self, writes: Sequence[LoggedWrite]) -> int:
        self._writes.extend(writes)
        return self.end_offset

    def flush(self) -> None:
        """Nothing to do: it has no disk."""

    def read(self, start_offset: int) -> Iterator[ChangelogBatch]:
        check_offset(self, start_offset, "the changelog in memory")
        return self._batches(start_offset, self.end_offset)

    def _batches(self, start: int, end: int) -> Iterator[ChangelogBatch]:
        while start < end:
            next_offset = min(start + self._batch_count_max, end)
            writes = self._writes[start:next_offset]
            yield ChangelogBatch([(write.key, write.value) for write in writes], next_offset)
            start = next_offset
