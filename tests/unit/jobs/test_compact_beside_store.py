"""An open store goes on with a bucket that was compacted under it: G1, G4, G6."""

import random

from tests.support.check_open_log import check_log
from tests.support.cleaning_bench import fold
from tests.support.log_model import read_committed
from tests.support.store_access import StoreAccess
from varve.commit_log import LogManager, TopicPartition
from varve.disk import MemoryFileSystem
from varve.jobs.compact.job import compact_partitions
from varve.jobs.compact.result import PartitionResult
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.tasks import LocalRunner
from varve.records import Record
from varve.testing import VirtualStore
from varve.tiering.fsck import FsckOptions, fsck
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.restore import hold_log_directory, plan_restore, restore_partition

PARTITION = TopicPartition("orders", 0)
SETTINGS: dict[str, str | int | float | bool] = {
    "remote.storage.enable": True,
    "cleanup.policy": "compact",
    "segment.bytes": 700,
    "index.interval.bytes": 150,
    "local.retention.ms": 1_000,
    "delete.retention.ms": 60_000,
    "min.cleanable.dirty.ratio": 0.0,
}


class Orders:
    """A compacted topic in two tiers, and what was appended to it."""

    def __init__(self, **settings: str | int | float | bool) -> None:
        self.kit = VirtualStore(settings={"varve.tier.url": "memory:"})
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.topic = self.kit.store.create_topic("orders", settings={**SETTINGS, **given})
        self.appended: list[Record] = []
        self.jobs = 0

    @property
    def home(self) -> RemotePath:
        return self.kit.store.tier.partitions.get(PARTITION).path

    def append(self, source: random.Random, count: int) -> None:
        for _ in range(count):
            key = b"key-%d" % source.randrange(20)
            self.put(key, None if source.random() < 0.2 else source.randbytes(20))

    def put(self, key: bytes, value: bytes | None) -> None:
        offset = self.topic.append(key=key, value=value).offset
        self.appended.append(Record(key, value, offset=offset))

    def settle(self) -> None:
        self.kit.advance(minutes=20)
        for _ in range(2):
            self.kit.run_background()
        assert not self.kit.store.health().tier

    def compact(self) -> PartitionResult:
        self.jobs += 1
        log = self.topic.partition(0).log
        settings = CompactSettings(log=log.settings, is_forced=True, replaced_retention_ms=1_000)
        result = compact_partitions(
            StoreAccess(self.kit.objects, random.Random(self.jobs)),
            [(self.home, settings)],
            runner=LocalRunner(),
            clock=self.kit.clock,
            random=random.Random(-self.jobs),
            histories={},
        )
        return result.partitions[0]

    def check(self) -> None:
        read = [
            Record(one.key, one.value, offset=one.offset)
            for one in self.topic.partition(0).read(start=0)
        ]
        assert fold(read) == fold(self.appended)
        for key, record in fold(self.appended).items():
            found = self.topic.get(key)
            assert found is not None
            assert found.value == record.value


def test_reads_lookups_copies_and_cleaning_go_on_over_a_compacted_bucket() -> None:
    source = random.Random(5)
    orders = Orders()
    for _ in range(4):
        orders.append(source, 60)
        orders.settle()
        assert orders.topic.partition(0).log.local_start_offset > 0
        result = orders.compact()
        assert result.error is None
        assert result.segments_rewritten > 0
        orders.check()
        orders.settle()
        orders.check()


def test_a_segment_of_which_nothing_is_left_is_read_over() -> None:
    orders = Orders(segment_bytes=150, min_cleanable_dirty_ratio=1.0)
    for number in range(12):
        orders.put(b"key-%d" % (number % 3), b"%02d" % number * 30)
    orders.settle()
    assert orders.compact().error is None
    manifests = orders.kit.store.tier.partitions.get(PARTITION).manifests
    sizes = [one.size for one in manifests.segments(manifests.load()) if one.is_readable]
    assert 0 in sizes
    orders.settle()
    orders.check()


def test_a_compacted_bucket_is_found_sound_and_restored() -> None:
    orders = Orders()
    orders.append(random.Random(7), 90)
    orders.topic.partition(0).log.roll()
    orders.settle()
    assert orders.compact().segments_rewritten > 0
    report = fsck(
        orders.kit.objects,
        orders.home.cluster,
        now_ms=orders.kit.now_ms,
        options=FsckOptions(deep=True, settle_ms=-(1 << 50)),
        random=random.Random(1),
        wait=lambda wait_ms: None,
    )
    assert (report.damage, report.orphans) == ([], [])
    manifests = StoreAccess(orders.kit.objects, random.Random(2)).manifests(orders.home)
    fs = MemoryFileSystem(orders.kit.clock)
    with hold_log_directory(fs, "/restored", cluster=orders.home.cluster):
        plan = plan_restore(manifests, manifests.load())
        restore_partition(orders.kit.objects, plan, fs, "/restored", clock=orders.kit.clock)
    with LogManager(["/restored"], fs=fs, clock=orders.kit.clock, random=random.Random(3)) as store:
        records = read_committed(store.get(PARTITION), start_offset=0)
        found = [Record(one.key, one.value, offset=one.offset) for one in records]
        assert fold(found) == fold(orders.appended)
        assert check_log(store.get(PARTITION)) == []
