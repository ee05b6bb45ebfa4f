"""A partition as its server has it: bounds, times, and the batches that are not read elsewhere.

Invariant  bounds are those of the first look. A piece is cut by offsets, whose bytes are guessed
           from a sample; what is read is what the server has then. Every batch of the wanted
           offsets is in a batch range: a response without batches is taken for the end of a log
           only where the server had all its time to find some. With each response the server says
           which transactions in it were aborted.
Threads    one reads; another fetches the next response meanwhile. Bounds: any thread, the client
           takes one request at a time.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import TopicPartition
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import Corrupt, NotFound, Unavailable, UnsupportedFormat
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.pieces import ServedPiece, step_by_bytes
from varve.jobs.source.record_blocks import CHUNK_BYTES, BatchRange, RecordFilter, Table
from varve.jobs.source.remote_plan import RemotePartitionLog
from varve.kafka_client.client import (
    EARLIEST,
    LATEST,
    FetchedBatches,
    KafkaClient,
    TopicMetadata,
    open_client,
)
from varve.kernels.batch_layout import CONTROL_BIT, BatchColumn, ScanStatus, status_text
from varve.records.columns import frozen_bytes
from varve.records.committed import scan_whole_batches
from varve.wire.messages.data import AbortedTransaction as ToldAborted

_WAIT_MS: Final = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class AnswerSource:
    """The batches of one answer."""

    name: str
    data: memoryview

    def read(self, start: int, end: int) -> memoryview:
        return self.data[start:end]


def fetch_batch_ranges(piece: ServedPiece, wanted: RecordFilter) -> Iterator[BatchRange]:
    """Where the wanted offsets lie: in the answers of the server, which are asked for one ahead."""
    client = open_client(piece.address)
    owner = TopicPartition(piece.topic, piece.partition)
    name = f"{piece.address.name}: {owner}"

    def fetch(offset: int) -> FetchedBatches | None:
        return fetch_some(
            client,
            owner,
            offset,
            end_offset=piece.end_offset,
            max_bytes=CHUNK_BYTES,
            is_committed=piece.is_committed,
        )

    with ThreadPoolExecutor(1, thread_name_prefix="varve-server") as pool:
        offset, low = piece.start_offset, 0
        flight: Future[FetchedBatches | None] | None = pool.submit(fetch, offset)
        while flight is not None:
            fetched = flight.result()
            if fetched is None:
                return
            rows, size = whole_batches(fetched.data, name)
            if not len(rows) or int(rows[-1, BatchColumn.LAST_OFFSET]) < offset:
                raise Corrupt(f"{name}: the answer for offset {offset} has no whole batch of it")
            behind = int(rows[-1, BatchColumn.LAST_OFFSET]) + 1
            flight = pool.submit(fetch, behind) if behind < piece.end_offset else None
            narrowed = replace(wanted, aborted=bound_aborted(fetched.aborted, rows))
            source = AnswerSource(name, fetched.data)
            yield BatchRange(source, piece.partition, 0, size, narrowed, base_offset=low)
            offset = low = behind


def fetch_some(
    client: KafkaClient,
    owner: TopicPartition,
    offset: int,
    *,
    end_offset: int,
    max_bytes: int,
    is_committed: bool,
) -> FetchedBatches | None:
    """Batches from an offset on; None where none is left below the end.

    An answer may be empty because the server's disk or object store is slow, so that it is asked
    again until the time of a request is over.
    """
    for _ in range(max(1, client.address.timeout_ms // _WAIT_MS)):
        fetched = client.fetch(
            owner.topic,
            owner.partition,
            offset,
            max_bytes=max_bytes,
            max_wait_ms=min(_WAIT_MS, client.address.timeout_ms // 2),
            is_committed=is_committed,
        )
        if len(fetched.data):
            return fetched
        limit = fetched.last_stable_offset if is_committed else fetched.high_watermark
        if limit < end_offset:
            raise Unavailable(
                f"{client.address.name}: {owner} ends at {limit} now, and offsets up to "
                f"{end_offset - 1} are wanted: the log was cut since the read was planned"
            )
    if not client.is_local(owner.topic, owner.partition, offset):
        raise Unavailable(
            f"{client.address.name}: {owner}, offset {offset}: the server has not read it from its "
            f"cold tier within {client.address.timeout_ms} ms; try again, or give option url and "
            "let tasks read the tier themselves"
        )
    return None


def whole_batches(data: memoryview, where: str) -> tuple[Table, int]:
    """A row for each whole batch of an answer, and where the last of them ends."""
    rows, position, status = scan_whole_batches(frozen_bytes(data), verify_crc=False)
    if status not in (ScanStatus.END, ScanStatus.INCOMPLETE):
        kind = UnsupportedFormat if status == ScanStatus.OLD_MAGIC else Corrupt
        raise kind(f"{where}: position {position} of an answer: {status_text(status)}")
    return rows, position


def bound_aborted(aborteds: Sequence[ToldAborted], rows: Table) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions of an answer with their ends, which the protocol leaves out.

    The next marker of the producer ends a transaction; one that is not in the answer lies behind.
    """
    markers = rows[(rows[:, BatchColumn.ATTRIBUTES] & CONTROL_BIT) != 0]
    bounded = []
    for transaction in aborteds:
        own = markers[
            markers[:, BatchColumn.PRODUCER_ID] == transaction.producer_id, BatchColumn.BASE_OFFSET
        ]
        later = own[own > transaction.first_offset]
        last = int(later[0]) if later.size else LONG_MAX
        bounded.append(
            AbortedTransaction(transaction.producer_id, transaction.first_offset, last, last)
        )
    return tuple(bounded)


# The partition


_SAMPLE_BYTES: Final = 256 << 10
_SAMPLE_WAIT_MS: Final = 500


class ServedPartitionLog:
    """One partition behind a server; `cold` is the part of it that is read elsewhere."""

    is_whole: Final = True
    """A server tells of its cold part as well: where the log begins, and what it has of a time."""

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

    def topic_id(self) -> str:
        return encode_topic_id(self._topic.id)

    @property
    def directory(self) -> str:
        return self._client.address.name

    @property
    def first_offset(self) -> int:
        return self.start_offset

    @cached_property
    def start_offset(self) -> int:
        return self._find(EARLIEST)

    @cached_property
    def end_offset(self) -> int:
        """Behind the last record that is seen: for readers of committed ones, the stable end."""
        return self._find(LATEST)

    @property
    def stable_offset(self) -> int:
        return self.end_offset

    @cached_property
    def log_end_offset(self) -> int:
        """Behind the last record of all, transactions without an outcome included."""
        return self._find(LATEST, is_committed=False)

    @property
    def cleaned_up_to(self) -> int:
        """A server does not tell how far its cleaner has come: maybe to the end."""
        return self.end_offset

    def _find(self, timestamp: int, *, is_committed: bool | None = None) -> int:
        owner = self.owner
        if is_committed is None:
            is_committed = self._is_committed
        offset = self._client.find_offset(
            owner.topic, owner.partition, timestamp, is_committed=is_committed
        )
        if offset is None:
            raise NotFound(f"{self.directory} tells no bounds of {owner}")
        return offset

    def find_by_time(self, timestamp: int, *, start_offset: int) -> int | None:
        """The first offset of a record of this time or later."""
        if timestamp < 0:
            return start_offset
        owner = self.owner
        offset = self._client.find_offset(
            owner.topic, owner.partition, timestamp, is_committed=self._is_committed
        )
        return None if offset is None else max(offset, start_offset)

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that began in the cold part and were aborted behind it."""
        remote = self._remote
        if remote is None or start_offset >= remote.end_offset:
            return []
        border = remote.end_offset
        if remote.stable_offset >= border or border >= self.end_offset:
            return []
        fetched = fetch_some(
            self._client,
            self.owner,
            border,
            end_offset=self.end_offset,
            max_bytes=1,
            is_committed=True,
        )
        if fetched is None:
            return []
        return [
            AbortedTransaction(transaction.producer_id, transaction.first_offset, border, border)
            for transaction in fetched.aborted
            if transaction.first_offset < min(border, end_offset)
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

    def step(self, *, start_offset: int, end_offset: int, max_bytes: int) -> int:
        """The offset up to which about so many bytes are read from the start."""
        whole = (start_offset, end_offset, self._guess_size(start_offset, end_offset))
        return step_by_bytes(
            [whole], start_offset=start_offset, end_offset=end_offset, max_bytes=max_bytes
        )

    def _guess_size(self, start_offset: int, end_offset: int) -> int:
        """About the bytes of a range, as if all of it were like its beginning."""
        fetched = self._client.fetch(
            self.owner.topic,
            self.owner.partition,
            start_offset,
            max_bytes=_SAMPLE_BYTES,
            max_wait_ms=_SAMPLE_WAIT_MS,
            is_committed=self._is_committed,
        )
        rows, size = whole_batches(fetched.data, f"{self.directory}: {self.owner}")
        if not len(rows):
            return len(fetched.data)
        covered = int(rows[-1, BatchColumn.LAST_OFFSET]) + 1 - start_offset
        return max(size, size * (end_offset - start_offset) // covered)
