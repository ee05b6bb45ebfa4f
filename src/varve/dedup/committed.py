"""The committed batches of what a log or a server gave for a read.

Aborted transactions are dropped as Kafka's consumer does it: each begins at its first offset and
ends at its producer's next abort marker.

Invariant  only whole batches with a good CRC come out, in the order of their offsets, without
           control batches and without those of aborted transactions.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from varve.foundation.errors import Corrupt
from varve.records import HEADER_BYTES, Batch, ControlType, decode_control_record
from varve.records.header import LENGTH_OVERHEAD, PREFIX


class CommittedBatch(NamedTuple):
    """A batch, and the bytes it is made of."""

    batch: Batch
    data: memoryview


class CommittedBatches:
    """Walks an answer; `next_offset` is behind the last whole batch met, committed or not."""

    def __init__(
        self, data: memoryview, aborted: Iterable[tuple[int, int]], *, start: int, where: str
    ) -> None:
        """`aborted` has pairs of producer id and first offset, as a read tells them."""
        self.next_offset = start
        self._data = data
        self._where = where
        self._waiting = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._aborting: set[int] = set()

    def __iter__(self) -> Iterator[CommittedBatch]:
        start = self.next_offset
        for one in self._whole():
            header = one.batch.header
            self.next_offset = max(self.next_offset, header.next_offset)
            while self._waiting and self._waiting[-1][1] <= header.last_offset:
                self._aborting.add(self._waiting.pop()[0])
            if header.is_control:
                if header.producer_id in self._aborting and _is_abort(one.batch):
                    self._aborting.discard(header.producer_id)
                continue
            is_aborted = header.is_transactional and header.producer_id in self._aborting
            if header.last_offset >= start and header.records_count and not is_aborted:
                yield one

    def _whole(self) -> Iterator[CommittedBatch]:
        """The last batch of an answer may be cut; what is there of it is asked for again."""
        position, end = 0, len(self._data)
        while position + HEADER_BYTES <= end:
            size = PREFIX.unpack_from(self._data, position)[1] + LENGTH_OVERHEAD
            if position + size > end:
                return
            batch = Batch(self._data, self._where, position=position)
            if not batch.is_valid_crc():
                raise Corrupt(
                    f"{self._where}: the batch with offset {batch.header.base_offset} does not "
                    "match its CRC; run `varve check` on the directory to see what is broken"
                )
            yield CommittedBatch(batch, self._data[position : position + size])
            position += size


def _is_abort(batch: Batch) -> bool:
    columns = batch.columns()
    if not len(columns):
        return False
    return decode_control_record(columns.key(0), columns.value(0)).type is ControlType.ABORT
