"""A deduplication without Spark: the real pack, judge and state, batch by batch."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from tests.support.dedup_model import Arrival
from varve.dedup.rules import Verdict
from varve.spark.deduplication.deduplicate import (
    BUCKET,
    ID,
    ROWS,
    TIME,
    Packer,
    decode_batch,
    read_ids,
    read_locations,
)
from varve.spark.deduplication.state import BatchTime, DedupWindow, IdBatch, IdSet, Judge


class MemoryChunks:
    """The state of a bucket as Spark's store keeps it: a failed batch can be taken back."""

    def __init__(self) -> None:
        self.head: bytes | None = None
        self.chunks: dict[int, bytes] = {}
        self.read_count = 0

    def copy(self) -> "MemoryChunks":
        made = MemoryChunks()
        made.head, made.chunks = self.head, dict(self.chunks)
        return made

    def find_head(self) -> bytes | None:
        return self.head

    def put_head(self, data: bytes) -> None:
        self.head = data

    def find_chunk(self, number: int) -> bytes | None:
        self.read_count += 1
        return self.chunks.get(number)

    def put_chunk(self, number: int, data: bytes) -> None:
        self.chunks[number] = data

    def remove_chunk(self, number: int) -> None:
        del self.chunks[number]


def to_batch(arrivals: Sequence[Arrival]) -> pa.RecordBatch:
    """Records as the packer takes them."""
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([one.partition for one in arrivals], pa.int32()),
            "offset": pa.array([one.offset for one in arrivals], pa.int64()),
            ID: pa.array([one.id for one in arrivals], pa.binary()),
            TIME: pa.array([one.time for one in arrivals], pa.int64()),
        }
    )


class DedupBench:
    """Buckets, their state, and workers that may hold old windows or none."""

    def __init__(
        self, *, before: int, after: int, lateness: int, refresh: bool = False, buckets: int = 2
    ) -> None:
        secret = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
        self.reach = DedupWindow(
            before_ms=before, after_ms=after, is_refreshing=refresh, secret=secret
        )
        self.judge = Judge(self.reach, 3_600_000)
        self.packer = Packer(tuple(range(buckets)), secret)
        self.stores = {bucket: MemoryChunks() for bucket in range(buckets)}
        self.workers: list[dict[int, IdSet]] = [{}, {}]
        self.lateness = lateness
        self.watermark = 0

    @property
    def floor(self) -> int:
        """Nothing before it is looked for any more, once a batch was judged by it."""
        return self.watermark - self.reach.before_ms

    def begin_again(self) -> None:
        """With a new checkpoint; the workers stay."""
        self.stores = {bucket: MemoryChunks() for bucket in self.stores}
        self.watermark = 0

    def batch(
        self, arrivals: Sequence[Arrival], now: int, *, worker: int = 0
    ) -> dict[tuple[int, int], Verdict]:
        """What each record is; the state goes on."""
        found: dict[tuple[int, int], Verdict] = {}
        for bucket, packed in self._pack(arrivals).items():
            batch = pa.concat_batches(packed)
            partitions, offsets = read_locations(batch)
            window = self.workers[worker].pop(bucket, None) or IdSet(self.reach)
            verdicts = self.judge.judge(
                IdBatch(read_ids(batch), partitions, offsets),
                BatchTime(self.watermark, now),
                window,
                self.stores[bucket],
            )
            self.workers[worker][bucket] = window
            places = zip(partitions.tolist(), offsets.tolist(), strict=True)
            found.update(zip(places, map(Verdict, verdicts.tolist()), strict=True))
        times = [
            one.time
            for one in arrivals
            if one.time is not None and one.time <= now + self.judge.max_future_ms
        ]
        self.watermark = max(self.watermark, max(times, default=0) - self.lateness)
        return found

    def _pack(self, arrivals: Sequence[Arrival]) -> dict[int, list[pa.RecordBatch]]:
        packed: dict[int, list[pa.RecordBatch]] = {}
        half = len(arrivals) // 2
        parts = [to_batch(part) for part in (arrivals[half:], arrivals[:half]) if part]
        for row in self.packer.pack(parts):
            bucket = row.column(BUCKET)[0].as_py()
            packed.setdefault(bucket, []).append(decode_batch(row.column(ROWS)[0].as_buffer()))
        return packed


def shuffled(arrivals: Sequence[Arrival], seed: int) -> list[Arrival]:
    """The same records in another order of rows."""
    order = np.random.default_rng(seed).permutation(len(arrivals))
    return [arrivals[place] for place in order]
