"""A partition that is read from its server: bounds, offsets by time, and records by Fetch.

Invariant  bounds are cached when they are first read. Pieces are cut by offset, with bytes
           estimated from a sample. Every record of the requested offsets is in a block: an empty
           response counts as the end of the log only after retries until the request timeout.
Threads    one thread reads; another fetches the next response. Bounds may be read by any thread,
           as the client is thread-safe.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Final

from varve.commit_log import Isolation
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import TopicPartition
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import NotFound, Unavailable
from varve.jobs.source.pieces import SegmentSize, ServedPiece
from varve.jobs.source.record_blocks import CHUNK_BYTES, RecordBlock, RecordFilter, parse_blocks
from varve.jobs.source.remote_plan import RemotePartitionLog
from varve.kafka_client.client import LATEST, KafkaClient, TopicMetadata, open_client
from varve.records import BatchHeader, CommittedBatches
from varve.topics import OffsetRange, Position
from varve.topics.kafka_cluster import KafkaReader

_WAIT_MS: Final = 5_000
"""Wait of one Fetch request; an empty response is retried until the request timeout."""
_SAMPLE_BYTES: Final = 256 << 10
"""Data from which the bytes of a range of offsets are estimated."""
_SAMPLE_WAIT_MS: Final = 500


class ServedRange:
    """Fetches offsets up to the end that the partition had when the read was planned."""

    def __init__(
        self, client: KafkaClient, owner: TopicPartition, end_offset: int, *, is_committed: bool
    ) -> None:
        self.name = f"{client.address.name}: {owner}"
        self._client = client
        self._owner = owner
        self._end_offset = end_offset
        self._reader = open_reader(client, owner.topic, is_committed=is_committed)

    def fetch(self, position: Position, *, max_bytes: int = CHUNK_BYTES) -> CommittedBatches | None:
        """The batches from a position on; None if there are no more below the end.

        A response may be empty because the server's disk or object store is slow, so an empty one
        is retried until the request timeout.
        """
        partition, timeout_ms = self._owner.partition, self._client.address.timeout_ms
        for _ in range(max(1, timeout_ms // _WAIT_MS)):
            fetched = self._reader.fetch(
                {partition: position}, max_bytes=max_bytes, wait_ms=min(_WAIT_MS, timeout_ms // 2)
            )
            if partition in fetched:
                return fetched[partition]
            end_offset = self._reader.offsets(partition).end
            if end_offset < self._end_offset:
                raise Unavailable(
                    f"{self.name} ends at offset {end_offset} now, before the planned end "
                    f"{self._end_offset}: the log was truncated after the read was planned"
                )
        if not self._client.is_local(self._owner.topic, partition, position.offset):
            raise Unavailable(
                f"{self.name}, offset {position.offset}: the server did not return it from its "
                f"remote tier within {timeout_ms} ms; try again, or give option url to let tasks "
                "read the tier themselves"
            )
        return None


def open_reader(client: KafkaClient, topic: str, *, is_committed: bool) -> KafkaReader:
    isolation = Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED
    return KafkaReader(client, topic, isolation=isolation)


def read_served(piece: ServedPiece, record_filter: RecordFilter) -> Iterator[RecordBlock]:
    """The records of a piece, in blocks of at most a response of the server."""
    owner = TopicPartition(piece.topic, piece.partition)
    client = open_client(piece.address)
    source = ServedRange(client, owner, piece.end_offset, is_committed=piece.is_committed)
    with ThreadPoolExecutor(1, thread_name_prefix="varve-server") as pool:
        position = Position(piece.start_offset)
        pending: Future[CommittedBatches | None] | None = pool.submit(source.fetch, position)
        while pending is not None:
            fetched = pending.result()
            if fetched is None:
                return
            position = Position.after(fetched)
            is_last = position.offset >= piece.end_offset
            pending = None if is_last else pool.submit(source.fetch, position)
            yield from parse_blocks(
                fetched.buffer,
                fetched.rows,
                partition=piece.partition,
                record_filter=record_filter,
                source_name=source.name,
            )


# The partition


class ServedPartitionLog:
    """One partition of a server; `remote` is the part that tasks read from the object store."""

    is_whole: Final = True
    """The log start offset and offsets by time of a server cover its remote tier."""

    def __init__(
        self,
        client: KafkaClient,
        topic: TopicMetadata,
        partition: int,
        *,
        remote: RemotePartitionLog | None,
        is_committed: bool,
    ) -> None:
        self.owner = TopicPartition(topic.name, partition)
        self._client = client
        self._topic = topic
        self._remote = remote
        self._is_committed = is_committed
        self._reader = open_reader(client, topic.name, is_committed=is_committed)

    def topic_id(self) -> str:
        return encode_topic_id(self._topic.id)

    @property
    def directory(self) -> str:
        return self._client.address.name

    @cached_property
    def _offsets(self) -> OffsetRange:
        return self._reader.offsets(self.owner.partition)

    @property
    def first_offset(self) -> int:
        return self._offsets.start

    @property
    def start_offset(self) -> int:
        return self._offsets.start

    @property
    def end_offset(self) -> int:
        """The end of the visible log: with read_committed, the last stable offset."""
        return self._offsets.end

    @property
    def stable_offset(self) -> int:
        return self.end_offset

    @cached_property
    def log_end_offset(self) -> int:
        """The log end offset, including transactions that are still open."""
        offset = self._find_offset(LATEST, is_committed=False)
        if offset is None:
            raise NotFound(f"{self.directory} returned no offsets of {self.owner}")
        return offset

    @property
    def cleaned_up_to(self) -> int:
        """The end offset: a server does not report how far its cleaner has come."""
        return self.end_offset

    def _find_offset(self, timestamp: int, *, is_committed: bool) -> int | None:
        owner = self.owner
        return self._client.find_offset(
            owner.topic, owner.partition, timestamp, is_committed=is_committed
        )

    def find_by_time(self, timestamp: int, *, start_offset: int) -> int | None:
        """The first offset of a record with this timestamp or a later one, if any."""
        if timestamp < 0:
            return start_offset
        offset = self._find_offset(timestamp, is_committed=self._is_committed)
        return None if offset is None else max(offset, start_offset)

    def find_batch_before(self, offset: int) -> BatchHeader | None:
        """The batch that holds the offset before this one, if any."""
        return self._reader.find_batch_before(self.owner.partition, offset)

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Transactions that began in the remote part and were aborted after it."""
        remote = self._remote
        if remote is None or start_offset >= remote.end_offset:
            return []
        border = remote.end_offset
        if remote.stable_offset >= border or border >= self.end_offset:
            return []
        source = ServedRange(self._client, self.owner, self.end_offset, is_committed=True)
        fetched = source.fetch(Position(border), max_bytes=1)
        return [
            AbortedTransaction(producer_id, first_offset, border, border)
            for producer_id, first_offset in (() if fetched is None else fetched.aborted)
            if first_offset < min(border, end_offset)
        ]

    def pieces(
        self,
        *,
        start_offset: int,
        end_offset: int,
        min_ms: int,
        split_bytes: int,
        aborted: Sequence[AbortedTransaction],
    ) -> list[ServedPiece]:
        """The pieces of [start, end) that may hold a record with timestamp `min_ms` or later."""
        first = self.find_by_time(min_ms, start_offset=start_offset)
        if first is None or first >= end_offset:
            return []
        size = self._estimate_size(first, end_offset)
        count = min(max(1, round(size / split_bytes)), end_offset - first)
        edges = [first + (end_offset - first) * number // count for number in range(count + 1)]
        return [
            ServedPiece(
                address=self._client.address,
                topic=self.owner.topic,
                partition=self.owner.partition,
                start_offset=start,
                end_offset=end,
                size=size // count,
                is_committed=self._is_committed,
            )
            for start, end in pairwise(edges)
        ]

    def segment_sizes(self, start_offset: int, end_offset: int) -> list[SegmentSize]:
        """The range as one segment of estimated size."""
        size = self._estimate_size(start_offset, end_offset)
        return [SegmentSize(start_offset, end_offset, size)]

    def _estimate_size(self, start_offset: int, end_offset: int) -> int:
        """The estimated bytes of a range, scaled from a sample at its start."""
        partition = self.owner.partition
        fetched = self._reader.fetch(
            {partition: Position(start_offset)}, max_bytes=_SAMPLE_BYTES, wait_ms=_SAMPLE_WAIT_MS
        )
        if partition not in fetched:
            return 0
        sample = fetched[partition]
        size, offset_count = sample.buffer.size, sample.next_offset - start_offset
        return max(size, size * (end_offset - start_offset) // offset_count)
