"""A topic that is cleaned locally and, appended alike, compacted in the cold tier."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.cleaning_bench import PARTITION, CleaningBench, fold
from tests.support.cleaning_model import ModelBatch
from tests.support.log_model import filter_committed, split_batches
from tests.support.store_access import StoreAccess
from tests.support.tier_bench import TierBench
from varve.commit_log import LogSettings
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.jobs.compact.job import compact_partitions
from varve.jobs.compact.result import PartitionResult
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.erase.remote import RemoteErasure
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.scan import Matcher
from varve.jobs.key_plans import INLINE_BYTES
from varve.jobs.tasks import LocalRunner, TaskRunner, run_together
from varve.object_store import ObjectStore
from varve.records import Codec, Record
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import Epochs, RemoteSegment, SegmentState


@dataclass
class RemoteCompaction:
    """A tiered log whose bucket is compacted by `compact`; its local part is left alone."""

    bench: TierBench
    range_bytes: int = 1 << 20
    runner: TaskRunner = field(default_factory=LocalRunner)
    seed: int = 1000
    epochs: Epochs | None = None
    """The leader epochs of the log, where the job is told of them."""
    inline_bytes: int = INLINE_BYTES
    """With 0 no bits of a plan pass through the driver."""

    @property
    def hot(self) -> CleaningBench:
        return self.bench.hot

    def settings(self, log: LogSettings | None = None) -> CompactSettings:
        return CompactSettings(
            log=log or self.bench.settings,
            is_forced=True,
            buffer_bytes=1 << 20,
            range_bytes=self.range_bytes,
            inline_bytes=self.inline_bytes,
            replaced_retention_ms=5000,
        )

    def compact(
        self, objects: ObjectStore | None = None, settings: CompactSettings | None = None
    ) -> PartitionResult:
        """A job as a new process runs it."""
        self.seed += 1
        reach = StoreAccess(objects or self.bench.bucket, random.Random(self.seed))
        result = compact_partitions(
            reach,
            [(self.bench.home, settings or self.settings())],
            runner=self.runner,
            clock=self.hot.clock,
            random=random.Random(-self.seed),
            histories={} if self.epochs is None else {self.bench.home: self.epochs},
        )
        (partition,) = result.partitions
        return partition

    def erase(self, matcher: Matcher, request: ErasureRequest) -> None:
        """Erases from the bucket alone; nothing else works on it."""
        self.seed += 1
        run = RemoteErasure(
            self.bench.home,
            StoreAccess(self.bench.bucket, random.Random(self.seed)),
            matcher,
            request,
            clock=self.hot.clock,
            random=random.Random(-self.seed),
        )
        (found,) = run_together([run.search()], LocalRunner())
        (done,) = run_together([run.rewrite(found.matched)], LocalRunner())
        assert done.error is None, done.error

    def copy(self) -> None:
        """A round of copying that goes well."""
        assert self.bench.copier.copy(PARTITION, self.hot.now_ms).error is None

    def change_manifest(self, change: Callable[[Manifest], Manifest]) -> None:
        """A commit of a server."""
        self.bench.manifests().commit(
            change, leader_epoch=None, writer="server", now_ms=self.hot.now_ms
        )

    def expire_first(self) -> RemoteSegment:
        """The first readable segment leaves the log; its objects stay."""
        first = self.bench.readable()[0]
        self.change_manifest(
            lambda manifest: manifest.start_delete([first.id], at_ms=1).raise_log_start(
                first.end_offset + 1
            )
        )
        return first

    def flip(self, number: int, part: str, at: int = -1) -> str:
        """Flips a bit of an object of a readable segment; returns its key."""
        key = self.bench.home.part_key(self.bench.readable()[number], part)
        data = bytearray(self.bench.bucket.get(key))
        data[at] ^= 0x10
        self.bench.bucket.put(key, bytes(data))
        return key

    # What the bucket shows

    def batches(self) -> list[ModelBatch]:
        """All batches of readable segments."""
        found = []
        for segment in self.bench.readable():
            data = self.bench.bucket.get(self.bench.home.part_key(segment, "log"))
            assert len(data) == segment.size
            found += [ModelBatch.of(one) for one in split_batches(data)]
        return found

    def aborted(self) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        for segment in self.bench.readable():
            if segment.find_part("txnindex") is not None:
                data = self.bench.bucket.get(self.bench.home.part_key(segment, "txnindex"))
                found += TransactionIndex.decode(data, segment.base_offset).entries()
        return found

    def state(self) -> dict[bytes, Record]:
        """What a reader of committed records ends up with."""
        data = [one.data for one in self.batches() if one.data is not None]
        ranges = [(one.producer_id, one.first_offset) for one in self.aborted()]
        return fold(filter_committed(data, ranges))

    def true_state(self) -> dict[bytes, Record]:
        """The same of the offsets that the bucket has, had nothing ever been compacted."""
        manifest = self.bench.manifests().load()
        start, end = manifest.log_start_offset, manifest.highest_offset + 1
        return fold(one for one in self.history() if start <= one.offset < end)

    def history(self) -> list[Record]:
        return self.hot.history.committed_records(self.hot.log.last_stable_offset)

    def check(self) -> None:
        """No hole, no overlap, every part as listed, and no object that no manifest names."""
        assert not list(self.bench.bucket.list(self.bench.home.work_folder)), "work is left"
        named = set()
        for segment in self.bench.segments():
            for part in segment.parts:
                key = self.bench.home.part_key(segment, part.name)
                named.add(key)
                if segment.is_readable:
                    assert len(self.bench.bucket.get(key)) == part.size
        keys = {entry.key for entry in self.bench.bucket.list(self.bench.home.segment_folder)}
        assert keys <= named, "an object that no manifest names"
        self.bench.check_offsets()

    def pending(self, state: SegmentState) -> int:
        return sum(one.state is state for one in self.bench.segments())


def append_any(
    source: random.Random, benches: Sequence[CleaningBench], keys: Sequence[bytes]
) -> None:
    """The same batches of every kind to each of the logs: plain, idempotent and transactional."""
    for _ in range(source.randint(1, 8)):
        producer_id = source.choice([-1, -1, 1, 2, 3])
        if producer_id > 0 and source.random() < 0.4:
            is_committed, bumps = source.random() < 0.5, source.random() < 0.2
            for bench in benches:
                bench.end_transaction(producer_id, committed=is_committed, bumps=bumps)
            continue
        records = [
            Record(
                source.choice(keys),
                None if source.random() < 0.25 else source.randbytes(source.randrange(30)),
                timestamp=benches[0].now_ms - source.randrange(50),
            )
            for _ in range(source.randint(1, 4))
        ]
        codec = source.choice(list(Codec))
        is_transactional = producer_id > 0 and source.random() < 0.6
        for bench in benches:
            bench.append(
                records, codec=codec, producer_id=producer_id, transactional=is_transactional
            )
