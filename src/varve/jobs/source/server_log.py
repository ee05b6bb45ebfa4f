"""A partition as its server has it: bounds, times, and the records that are not read elsewhere.

Invariant  bounds are those of the first look. A piece is cut by offsets, whose bytes are guessed
           from a sample; what is read is what the server has then. Every record of the wanted
           offsets is in a block: a response without batches is taken for the end of a log only
           where the server had all its time to find some.
Threads    one reads; another fetches the next response meanwhile. Bounds: any thread, the client
           takes one request at a time.
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
from varve.jobs.source.record_blocks import CHUNK_BYTES, RecordBlock, RecordFilter, parse_block
from varve.jobs.source.remote_plan import RemotePartitionLog
from varve.kafka_client.client import LATEST, KafkaClient, TopicMetadata, open_client
from varve.records import BatchHeader, CommittedBatches
from varve.topics import OffsetRange, Position
from varve.topics.kafka_cluster import KafkaReader

_WAIT_MS: Final = 5_000
_SAMPLE_BYTES: Final = 256 << 10
_SAMPLE_WAIT_MS: Final = 500


class ServedRange:
    """Reads the offsets up to an end that the partition had when the read was planned."""

    def __init__(
        self, client: KafkaClient, owner: TopicPartition, end_offset: int, *, is_committed: bool
    ) -> None:
        self.name = f"{client.address.name}: {owner}"
        self._client = client
        self._owner = owner
        self._end_offset = end_offset
        self._reader = open_reader(client, owner.topic, is_committed=is_committed)

    def fetch(self, position: Position, *, max_bytes: int = CHUNK_BYTES) -> CommittedBatches | None:
        """Batches from a position on; None where none is left below the end.

        A response may be empty because the server's disk or object store is slow, so that it is
        asked again until the time of a request is over.
        """
        partition, timeout_ms = self._owner.partition, self._client.address.timeout_ms
        for _ in range(max(1, timeout_ms // _WAIT_MS)):
            found = self._reader.fetch(
                {partition: position}, max_bytes=max_bytes, wait_ms=min(_WAIT_MS, timeout_ms // 2)
            )
            if partition in found:
                return found[partition]
            limit = self._reader.offsets(partition).end
            if limit < self._end_offset:
                raise Unavailable(
                    f"{self.name} ends at {limit} now, and offsets up to {self._end_offset - 1} "
                    "are wanted: the log was cut since the read was planned"
                )
        if not self._client.is_local(self._owner.topic, partition, position.offset):
            raise Unavailable(
                f"{self.name}, offset {position.offset}: the server has not read it from its cold "
                f"tier within {timeout_ms} ms; try again, or give option url and let tasks read "
                "the tier themselves"
            )
        return None


def open_reader(client: KafkaClient, topic: str, *, is_committed: bool) -> KafkaReader:
    isolation = Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED
    return KafkaReader(client, topic, isolation=isolation)


def read_served(piece: ServedPiece, wanted: RecordFilter) -> Iterator[RecordBlock]:
    """The wanted records, a block for each response of the server."""
    owner = TopicPartition(piece.topic, piece.partition)
    client = open_client(piece.address)
    source = ServedRange(client, owner, piece.end_offset, is_committed=piece.is_committed)
    with ThreadPoolExecutor(1, thread_name_prefix="varve-server") as pool:
        position = Position(piece.start_offset)
        flight: Future[CommittedBatches | None] | None = pool.submit(source.fetch, position)
        while flight is not None:
            fetched = flight.result()
            if fetched is None:
                return
            position = Position.after(fetched)
            is_last = position.offset >= piece.end_offset
            flight = None if is_last else pool.submit(source.fetch, position)
            block = parse_block(
                fetched.buffer,
                fetched.rows,
                partition=piece.partition,
                wanted=wanted,
                source_name=source.name,
            )
            if block is not None:
                yield block


# The partition


class ServedPartitionLog:
    """One partition behind a server; `cold` is the part of it that is read elsewhere."""

    is_whole: Final = True
    """A server answers for its cold tier as well: the log start, and offsets by time."""

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
        """Behind the last record that is seen: for readers of committed ones, the stable end."""
        return self._offsets.end

    @property
    def stable_offset(self) -> int:
        return self.end_offset

    @cached_property
    def log_end_offset(self) -> int:
        """Behind the last record of all, transactions without an outcome included."""
        offset = self._find_offset(LATEST, is_committed=False)
        if offset is None:
            raise NotFound(f"{self.directory} returned no offsets of {self.owner}")
        return offset

    @property
    def cleaned_up_to(self) -> int:
        """A server does not report the progress of its cleaner: it may be at the end."""
        return self.end_offset

    def _find_offset(self, timestamp: int, *, is_committed: bool) -> int | None:
        owner = self.owner
        return self._client.find_offset(
            owner.topic, owner.partition, timestamp, is_committed=is_committed
        )

    def find_by_time(self, timestamp: int, *, start_offset: int) -> int | None:
        """The first offset of a record of this time or later."""
        if timestamp < 0:
            return start_offset
        offset = self._find_offset(timestamp, is_committed=self._is_committed)
        return None if offset is None else max(offset, start_offset)

    def find_batch_before(self, offset: int) -> BatchHeader | None:
        """The batch that holds the offset before this one, None if it is not there."""
        return self._reader.find_batch_before(self.owner.partition, offset)

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that began in the cold part and were aborted after it."""
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
        """All of [start, end) that may hold a record of the time or later."""
        first = self.find_by_time(min_ms, start_offset=start_offset)
        if first is None or first >= end_offset:
            return []
        size = self._guess_size(first, end_offset)
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
        """The range as one segment, whose bytes are guessed."""
        size = self._guess_size(start_offset, end_offset)
        return [SegmentSize(start_offset, end_offset, size)]

    def _guess_size(self, start_offset: int, end_offset: int) -> int:
        """About the bytes of a range, as if all of it were like its beginning."""
        partition = self.owner.partition
        found = self._reader.fetch(
            {partition: Position(start_offset)}, max_bytes=_SAMPLE_BYTES, wait_ms=_SAMPLE_WAIT_MS
        )
        if partition not in found:
            return 0
        sample = found[partition]
        size, covered = sample.buffer.size, sample.next_offset - start_offset
        return max(size, size * (end_offset - start_offset) // covered)
