"""The batches of a server's log as stretches, one for each answer, the next one on its way.

Invariant  every batch of the wanted offsets is in a stretch: an answer without batches is taken for
           the end of a log only where the server had all its time to find some. With each answer
           the server tells which transactions in it were aborted.
Threads    one reads; another fetches the next answer meanwhile.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from varve.commit_log.names import TopicPartition
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import Corrupt, Unavailable, UnsupportedFormat
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.pieces import ServerPiece
from varve.jobs.source.record_blocks import CHUNK_BYTES, Stretch, Table, Wanted
from varve.kafka_client.client import FetchedBatches, KafkaClient, open_client
from varve.kernels.batch_layout import BATCH_COLUMN_COUNT, BatchColumn, ScanStatus, status_text
from varve.kernels.batch_scan import scan_batches
from varve.wire.messages.data import AbortedTransaction as ToldAborted

_ROWS: Final = 4096
_CONTROL: Final = 0x20
_WAIT_MS: Final = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class AnswerSource:
    """The batches of one answer."""

    name: str
    data: memoryview

    def read(self, start: int, end: int) -> memoryview:
        return self.data[start:end]


def fetch_stretches(piece: ServerPiece, wanted: Wanted) -> Iterator[Stretch]:
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
            yield Stretch(source, piece.partition, 0, size, narrowed, base_offset=low)
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
    buffer = np.frombuffer(data, np.uint8)
    tables: list[Table] = [np.empty((0, BATCH_COLUMN_COUNT), np.int64)]
    position, status = 0, int(ScanStatus.FULL)
    while status == ScanStatus.FULL:
        rows = np.empty((_ROWS, BATCH_COLUMN_COUNT), np.int64)
        count, position, status = scan_batches(buffer, position, buffer.size, False, rows)
        tables.append(rows[:count])
    if status not in (ScanStatus.END, ScanStatus.INCOMPLETE):
        kind = UnsupportedFormat if status == ScanStatus.OLD_MAGIC else Corrupt
        raise kind(f"{where}: position {position} of an answer: {status_text(status)}")
    return np.concatenate(tables), position


def bound_aborted(told: Sequence[ToldAborted], rows: Table) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions of an answer with their ends, which the protocol leaves out.

    The next marker of the producer ends a transaction; one that is not in the answer lies behind.
    """
    markers = rows[(rows[:, BatchColumn.ATTRIBUTES] & _CONTROL) != 0]
    bounded = []
    for one in told:
        own = markers[
            markers[:, BatchColumn.PRODUCER_ID] == one.producer_id, BatchColumn.BASE_OFFSET
        ]
        later = own[own > one.first_offset]
        last = int(later[0]) if later.size else LONG_MAX
        bounded.append(AbortedTransaction(one.producer_id, one.first_offset, last, last))
    return tuple(bounded)
