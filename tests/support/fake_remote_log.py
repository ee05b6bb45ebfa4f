"""A remote log that keeps its batches in a list, and lets a test act in the middle of a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.log_model import split_batches
from varve.commit_log import Isolation, Log, TimestampOffset
from varve.commit_log.log_reader import RemoteRead, RemoteReadRequest
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import StoreError
from varve.records import Batch


@dataclass
class FakeRemoteLog:
    """Serves what `take` took of a log before it left the local disk.

    `meanwhile` are called one per request, before it is answered; `failure` is raised by each.
    `is_complete` is what a read says of the aborted transactions it knows.
    """

    batches: list[bytes] = field(default_factory=list)
    aborted: Sequence[AbortedTransaction] = ()
    is_complete: bool = True
    failure: StoreError | None = None
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def take(self, log: Log, before_offset: int) -> None:
        """Copies what lies before an offset, and the aborted transactions of all of it."""
        offset = log.log_start_offset
        while offset < before_offset:
            fetched = log.read(start_offset=offset, isolation=Isolation.LOG_END)
            self.batches += [
                data
                for data in split_batches(fetched.data)
                if Batch(data).header.base_offset < before_offset
            ]
            offset = fetched.next_offset
        self.aborted = [
            one for one in log.aborted_transactions() if one.last_offset < before_offset
        ]

    def _begin(self, start_offset: int, end_offset: int) -> None:
        self.asked.append((start_offset, end_offset))
        if self.meanwhile:
            self.meanwhile.pop(0)()
        if self.failure is not None:
            raise self.failure

    def read(self, request: RemoteReadRequest) -> RemoteRead | None:
        start_offset, limit_offset, max_bytes, min_one, with_aborted = request
        self._begin(start_offset, limit_offset)
        data, next_offset = b"", start_offset
        for batch in self.batches:
            header = Batch(batch).header
            if header.last_offset < start_offset or header.last_offset >= limit_offset:
                continue
            if len(data) + header.size > max_bytes and not (min_one and not data):
                break
            data += batch
            next_offset = header.last_offset + 1
        if next_offset == start_offset and not self._is_behind(start_offset, limit_offset):
            return None
        aborted = [
            one
            for one in self.aborted
            if one.first_offset < next_offset and one.last_offset >= start_offset
        ]
        if not with_aborted:
            return RemoteRead(memoryview(data), next_offset)
        return RemoteRead(memoryview(data), next_offset, tuple(aborted), self.is_complete)

    def _is_behind(self, start_offset: int, limit_offset: int) -> bool:
        lasts = [Batch(one).header.last_offset for one in self.batches]
        return any(start_offset <= last < limit_offset for last in lasts)

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        self._begin(start_offset, end_offset)
        for batch in self.batches:
            for record in Batch(batch).records():
                if start_offset <= record.offset < end_offset and record.timestamp >= timestamp:
                    return TimestampOffset(record.timestamp, record.offset)
        return None
