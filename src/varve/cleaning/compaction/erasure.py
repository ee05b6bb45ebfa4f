"""Erasure: plans the rewrite of one segment without the requested records, and its removal.

Invariant  only the requested records are removed: tombstones, markers, stale and aborted records
           and batches that were empty before stay as they are. A batch that loses all its records
           stays as an empty batch where compaction would keep it, and at the segment's end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from varve.cleaning.compaction.segment_plan import (
    RunRules,
    SegmentPlan,
    first_records,
    summarize_input,
)
from varve.cleaning.key_index.builder import KeyIndexBuilder, index_segment
from varve.cleaning.key_index.key_index import InputSegment, SegmentKeys, Table
from varve.cleaning.removals.removal import Reason, Removal, RemovalKind, SegmentSummary, hex_digest
from varve.commit_log import TopicPartition
from varve.commit_log.names import LOG
from varve.commit_log.producer_state import LastRecord
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ErasedRecords:
    """Records of one segment, in the order of its file.

    Each is identified by the base offset of its batch and its index in the batch. `size` is their
    encoded size in bytes, `kept_size` that of the other data records of the segment.
    """

    offsets: Integers
    batches: Integers
    ranks: Integers
    size: int
    kept_size: int = 0

    def __len__(self) -> int:
        return len(self.offsets)


def number_records(
    records: ErasedRecords, batches: Table, *, base_offset: int, where: str
) -> Integers:
    """The numbers of the records within their segment.

    `batches` is the batch table of the segment's key index. Raises Corrupt when the table does
    not match the records.
    """
    bases = base_offset + batches["base"].astype(np.int64)
    slots = np.searchsorted(bases, records.batches)
    is_listed = slots < len(bases)
    if not is_listed.all() or (bases[slots] != records.batches).any():
        raise Corrupt(f"{where}: its key index lists other batches than it holds: erase again")
    numbers: Integers = first_records(batches)[slots] + records.ranks
    if (records.ranks >= batches["count"][slots]).any():
        raise Corrupt(f"{where}: its key index counts other records than it holds: erase again")
    return numbers


def plan_erasure(
    segment: InputSegment,
    keys: SegmentKeys,
    records: ErasedRecords,
    *,
    next_offset: int,
    aborted: Sequence[AbortedTransaction],
    producers: Mapping[int, LastRecord],
    now_ms: int,
    digest: "KeyDigest",
) -> SegmentPlan:
    """Plans the rewrite of a segment without these records.

    `aborted` are the transactions that touch it, `producers` the active producers' last records.
    """
    with keys.open() as index:
        batches, marks = index.batches(), index.marks()
    where = segment.path(LOG)
    count = keys.record_count
    numbers = number_records(records, batches, base_offset=segment.base_offset, where=where)
    dropped = np.zeros((count + 7) // 8, np.uint8)
    np.bitwise_or.at(dropped, numbers >> 3, np.uint8(1) << (numbers & 7).astype(np.uint8))
    return SegmentPlan(
        base_offset=segment.base_offset,
        size=segment.size,
        next_offset=next_offset,
        is_dirty=False,
        summary=summarize_input(segment, keys.header),
        segment=segment,
        keys=keys,
        keep=~dropped,
        tombstones=np.zeros(len(dropped), np.uint8),
        discardable=np.zeros(len(marks), np.bool_),
        aborted_kept=[
            transaction
            for transaction in aborted
            if segment.base_offset <= transaction.last_offset < next_offset
        ],
        records={Reason.KEPT: count - len(records), Reason.ERASED: len(records)},
        bytes={Reason.KEPT: records.kept_size, Reason.ERASED: records.size},
        deleted=0,
        digest=digest.of(segment, dropped),
        planned_bytes=max(segment.size - records.size, 0),
        stamped_bytes=0,
        is_changed=bool(len(records)),
        rules=RunRules(
            now_ms=now_ms,
            delete_retention_ms=0,
            first_uncleanable_offset=next_offset,
            producers=producers,
            keep_empty_batches=True,
        ),
    )


@dataclass(frozen=True, slots=True)
class KeyDigest:
    """Computes the digest of a segment's keys from its records, aborted ones included.

    Keys beyond `buffer_bytes` are spilled to files whose names begin with `path`.
    """

    fs: FileSystem
    path: str
    topic_id: bytes
    buffer_bytes: int

    def of(self, segment: InputSegment, dropped: Bits | None = None) -> tuple[int, int]:
        """The digest without the dropped records; raises Corrupt for a damaged segment."""
        builder = KeyIndexBuilder(
            self.fs,
            self.path,
            base_offset=segment.base_offset,
            topic_id=self.topic_id,
            buffer_bytes=self.buffer_bytes,
            aborted=(),
            dropped=dropped,
        )
        index_segment(builder, segment)
        self.fs.remove(self.path)
        return builder.digest


def balance_erasure(
    plan: SegmentPlan,
    output: SegmentSummary,
    *,
    id: int,
    partition: TopicPartition,
    digest_after: tuple[int, int],
    request: str,
) -> Removal:
    """The removal entry of an erasure; raises Unbalanced when it does not add up."""
    removal = Removal(
        id=id,
        partition=partition,
        kind=RemovalKind.ERASURE,
        at_ms=plan.rules.now_ms,
        inputs=(plan.summary,),
        outputs=(output,),
        records=plan.records,
        bytes=plan.bytes,
        keys_before=hex_digest(plan.digest),
        keys_after=hex_digest(digest_after),
        rule=f"erasure {request}: only the requested records",
        end_offset=plan.next_offset,
    )
    removal.check()
    return removal
