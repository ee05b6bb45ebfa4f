"""Batches of a broker's topic as they are stored, which librdkafka hides from its users.

Invariant  a range ends at the end offsets of its beginning; every batch matches its CRC, and none
           of an aborted transaction is returned under read_committed.
"""

from typing import Final

from varve.embedded.partition import ReadRange
from varve.foundation.errors import OffsetOutOfRange, Unavailable
from varve.kafka_client.client import EARLIEST, LATEST, KafkaClient
from varve.records import CommittedBatches

_FETCH_BYTES: Final = 1 << 20
_REMOTE_READ_WAIT_MS: Final = 5_000
"""How long a broker may take to read a batch from its remote tier."""


class FetchedRange(ReadRange):
    """A range of a partition of a broker, limited to the records visible now.

    Raises OffsetOutOfRange for a start outside the log.
    """

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        partition: int,
        *,
        start: int | None,
        end: int | None,
        is_committed: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._is_committed = is_committed
        log_start = self._find_offset(EARLIEST, is_committed=False)
        log_end = self._find_offset(LATEST, is_committed=False)
        if start is None:
            start = log_start
        elif not log_start <= start <= log_end:
            raise OffsetOutOfRange(
                f"{self._where} begins at offset {log_start}, and its records end before offset "
                f"{log_end}; start there, not at {start}"
            )
        visible = self._find_offset(LATEST, is_committed=True) if is_committed else log_end
        super().__init__(start, visible if end is None else min(end, visible))

    @property
    def _where(self) -> str:
        return f"{self._client.address.name}: {self._topic}-{self._partition}"

    def _find_offset(self, timestamp: int, *, is_committed: bool) -> int:
        offset = self._client.find_offset(
            self._topic, self._partition, timestamp, is_committed=is_committed
        )
        if offset is None:
            raise Unavailable(f"{self._where}: the broker does not report its offsets; try again")
        return offset

    def fetch(self, offset: int) -> CommittedBatches:
        fetched = self._client.fetch(
            self._topic,
            self._partition,
            offset,
            max_bytes=_FETCH_BYTES,
            max_wait_ms=_REMOTE_READ_WAIT_MS,
            is_committed=self._is_committed,
        )
        batches = CommittedBatches(
            fetched.data,
            [(aborted.producer_id, aborted.first_offset) for aborted in fetched.aborted],
            start_offset=offset,
            where=self._where,
        )
        if batches.next_offset <= offset:
            raise Unavailable(
                f"{self._where}: the broker returned no record from offset {offset} to before "
                f"{self.end} within {_REMOTE_READ_WAIT_MS} ms; try again"
            )
        return batches
