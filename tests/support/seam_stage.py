"""One tiered topic with everything that may happen to it at the same time, and its judge.

`prepare` makes the topic once: segments in the bucket alone, in both tiers, closed and not copied,
and active; some are due for expiry. A `SeamStage` is a copy of it. Its activities are methods; the
judge restarts everything, lets the background work end and compares what is there with what was
acknowledged.

Invariant  an activity may be refused with an error of varve's; it may not damage anything.
"""

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.erasure_bench import ErasureBench
from tests.support.feed_bench import build_feed, row_key_of
from tests.support.interleaving import Interleaving, Outcome
from tests.support.sink_bench import batch_of
from tests.support.snapshot_topic import rows_of
from tests.support.store_access import StoreAccess
from tests.support.tiered_topic import MINUTE, PARTITION, TieredTopic
from varve.cleaning.removals.audit import audit_partition
from varve.commit_log.check import Severity
from varve.dedup import Deduplicator
from varve.dedup.rules import DedupRules, LatePolicy, NullPolicy, parse_id_source
from varve.disk import RealFileSystem
from varve.embedded import Store
from varve.embedded.topic import packaging_for
from varve.foundation.clock import ManualClock
from varve.foundation.errors import OffsetOutOfRange, StoreError
from varve.jobs.compact.job import compact_partitions
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.sink.batch_builder import BatchBuilder, SinkTarget
from varve.jobs.sink.commit import DirectoryCommit, topic_id_of
from varve.jobs.sink.sink_state import EpochWrite, SinkStateFile
from varve.jobs.sink.staging import Staging
from varve.jobs.snapshot.snapshot import SnapshotSettings, take_snapshot
from varve.jobs.snapshot.store import open_snapshot
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.table.data_files import FileStore
from varve.jobs.table.definition import TableSettings
from varve.jobs.table.rewrite import expire_snapshots
from varve.jobs.table.sync import sync_table
from varve.jobs.tasks import LocalRunner
from varve.jobs.tier import bucket as bucket_module
from varve.jobs.tier.bucket import Bucket
from varve.jobs.verify.verification import verify_partitions
from varve.object_store import MemoryObjectStore
from varve.records import Codec
from varve.rocks.memory_database import MemoryDatabases
from varve.shapes.definition import define
from varve.shapes.engine import ShapeEngine
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.tiering.fsck import Damage, FsckOptions, fsck
from varve.tiering.restore import hold_log_directory, plan_restore, restore_partition
from varve.topics import StoreCluster

TOPIC: Final = "orders"
TABLE: Final = "shop.orders"
SECRET: Final = b"secret"
SECRET_TEXT: Final = "4711-personal"
"""Part of each value of the key that is erased."""
URL: Final = "memory:seam"
_ROOT: Final = "/data"
_LATER_MS: Final = 700_000
"""Longer than the longest wait of a copy that failed, and than every grace."""
_RULES: Final = DedupRules(
    by=parse_id_source("field:n"),
    before_ms=MINUTE,
    after_ms=MINUTE,
    lateness_ms=1 << 34,
    late=LatePolicy.FORWARD,
    future=LatePolicy.FORWARD,
    missing=LatePolicy.FORWARD,
    null=NullPolicy.FORWARD,
    is_refreshing=False,
    max_future_ms=1 << 34,
)
"""Every record has a number of its own, so that no record is a duplicate."""

ACTIVITIES: Final = (
    "append",
    "roll",
    "clean",
    "maintain",
    "copy_segments",
    "expire_remote",
    "evict",
    "compact_job",
    "erase",
    "erase_bucket",
    "snapshot",
    "table",
    "expire_table",
    "dedup",
    "sink",
    "delete_records",
    "alter",
    "leave_tier",
    "return_to_tier",
    "recreate",
    "lose_end",
    "restore",
    "follow",
)
_JOBS: Final = ("compact_job", "erase_bucket", "snapshot", "table", "expire_table", "restore")
"""Other processes, which need no lock of the directory."""
PAIRS: Final = tuple(
    (first, second)
    for first in ACTIVITIES
    for second in ACTIVITIES
    if all(one != "erase" or other in _JOBS for one, other in ((first, second), (second, first)))
)
"""An erasure of the directory needs its lock, which a server or another erasure has."""
_NEEDED: Final = {
    "erase": ("snapshot", "table"),
    "erase_bucket": ("snapshot", "table"),
    "expire_table": ("table",),
}
"""What there is before an activity begins."""

Cell = tuple[bytes | None, bytes | None]
SUNK: Final[tuple[Cell, ...]] = tuple(
    (key, json.dumps({"n": number, "note": "sunk"}).encode())
    for key, number in ((b"a", 901), (b"f", 902))
)
"""What the sink writes."""


@dataclass
class Acknowledged:
    """What was appended, and which activities may have removed some of it."""

    records: dict[int, Cell] = field(default_factory=dict)
    reasons: set[str] = field(default_factory=set)
    lost_from: int | None = None
    number: int = 0


def _make_topic(compacted: bool) -> TieredTopic:
    policy = "compact" if compacted else "delete"
    return TieredTopic(
        {
            "cleanup.policy": policy,
            "retention.ms": 10 * MINUTE,
            "local.retention.ms": 8 * MINUTE,
            "min.cleanable.dirty.ratio": 0.0,
            "delete.retention.ms": 0,
        },
        {"varve.tier.read.ahead.max.bytes": 0, "log.cleaner.backoff.ms": 0},
    )


class _DiskOfJobs:
    """Log directories in memory, and everything else, such as scratch, on the real disk."""

    def __init__(self, disk: FaultyFileSystem) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(path: str, *rest: Any) -> Any:
            files = self._disk if path.startswith(_ROOT) else RealFileSystem()
            return getattr(files, name)(path, *rest)

        return call


class SeamStage:
    """One topic on a disk and a bucket that an `Interleaving` can stop."""

    def __init__(self, topic: TieredTopic, known: Acknowledged, path: Path) -> None:
        self.topic = topic
        self.known = known
        self.path = path
        self.interleaving = Interleaving()
        self.has_receipt = False
        self.names: set[str] = set()
        self._lock = threading.Lock()
        self._runs = 0
        self._engine: ShapeEngine | None = None

    # How a stage is made

    @classmethod
    def prepare(cls, path: Path, *, compacted: bool) -> "SeamStage":
        """A topic in every state of its segments, with a table, a snapshot and a shape of it."""
        stage = cls(_make_topic(compacted), Acknowledged(), path)
        for number in range(5):
            for key in (b"a", b"b", SECRET if number % 2 else b"c"):
                stage.put(key)
            if number == 3:
                stage.put(b"c", delete=True)
            stage.topic.log.roll()
            stage.topic.kit.advance(minutes=2)
            if number == 1:
                stage.topic.copy()
                stage.topic.move(stage.topic.log.end_offset)
            if number == 3:
                stage.topic.copy()
        for key in (b"a", SECRET, b"d"):
            stage.put(key)
        stage.topic.log.flush()
        stage.topic.kit.advance(minutes=1)
        return stage

    def copy(self, path: Path) -> "SeamStage":
        """The same state on a disk and in a bucket of its own, as after a killed process."""
        disk = self.topic.disk.after_crash(CrashMode.KEEP_ALL)
        bucket = MemoryObjectStore()
        for entry in self.topic.bucket.list(""):
            bucket.put(entry.key, self.topic.bucket.get(entry.key))
        known = Acknowledged(dict(self.known.records), number=self.known.number)
        other = SeamStage(self.topic.on(bucket, disk), known, path)
        other._wrap()
        return other

    def _wrap(self) -> None:
        objects = self.interleaving.wrap_objects(self.topic.bucket)
        kit = self.topic.kit
        kit.store.close()
        # The judge lets time pass, for this copy alone.
        kit.clock = self.topic.disk._clock = ManualClock(kit.now_ms)
        self.topic.objects = kit.objects = objects
        self.interleaving.wrap_disk(self.topic.disk)
        kit._open()

    @contextmanager
    def _jobs_here(self) -> Iterator[None]:
        """Jobs read logs from the real disk, and objects by an address: here both are these.

        Calls of pyiceberg for files and for its catalog may be stopped too.
        """
        disk = _DiskOfJobs(self.topic.disk)
        replaced = {
            module: module.RealFileSystem
            for name, module in list(sys.modules.items())
            if name.startswith("varve.jobs") and hasattr(module, "RealFileSystem")
        }
        for module in replaced:
            module.RealFileSystem = lambda: disk  # type: ignore[attr-defined]
        bucket_module._stores[self.address] = self.topic.objects
        try:
            with self.interleaving.stopping(
                (PyArrowFileIO, ("new_input", "new_output", "delete")),
                (SqlCatalog, ("load_table", "commit_table")),
                (FileStore, ("list_files",)),
            ):
                yield
        finally:
            for module, system in replaced.items():
                module.RealFileSystem = system  # type: ignore[attr-defined]
            del bucket_module._stores[self.address]

    @property
    def address(self) -> Bucket:
        return Bucket(URL)

    @property
    def store(self) -> Store:
        return self.topic.kit.store

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self.store.close()

    def _seed(self) -> random.Random:
        with self._lock:
            self._runs += 1
            return random.Random(self._runs)

    def run(
        self, first: str, second: str, *, stop_first: int, stop_second: int = 0
    ) -> tuple[Outcome, Outcome]:
        """Two activities by name, one stopped before a call for the other."""
        self.names = {first, second}
        with self._jobs_here():
            for name in (first, second):
                for needed in _NEEDED.get(name, ()):
                    self.names.add(needed)
                    getattr(self, needed)()
            return self.interleaving.run(
                getattr(self, first),
                getattr(self, second),
                stop_first=stop_first,
                stop_second=stop_second,
            )

    # Activities

    def put(self, key: bytes, *, delete: bool = False) -> None:
        with self._lock:
            self.known.number += 1
            number = self.known.number
        note = SECRET_TEXT if key == SECRET else "x" * 20
        value = None if delete else json.dumps({"n": number, "note": note}).encode()
        topic = self.store.topic(TOPIC)
        if value is None:
            found = topic.delete_key(key)
        else:
            found = topic.append(value, key=key, timestamp_ms=self.topic.kit.now_ms)
        with self._lock:
            self.known.records[found.offset] = (key, value)

    def append(self) -> None:
        for key in (b"a", b"e", b"b"):
            self.put(key)

    def roll(self) -> None:
        self.topic.log.roll()

    def clean(self) -> None:
        self._may("compact", "expire")
        self.topic.kit.clean_now(TOPIC, roll=False)

    def maintain(self) -> None:
        self._may("compact", "expire")
        self.topic.kit.run_background()

    def copy_segments(self) -> None:
        self.topic.tier.copy(PARTITION, self.topic.kit.now_ms)

    def expire_remote(self) -> None:
        self._may("expire")
        self.topic.expire()

    def evict(self) -> None:
        """What is copied leaves the local disk."""
        self._may("expire")
        self.store.alter_topic(TOPIC, {"local.retention.ms": MINUTE})
        self.topic.expire()

    def compact_job(self) -> None:
        self._may("compact")
        settings = CompactSettings(
            log=self.topic.log.settings,
            is_forced=True,
            buffer_bytes=1 << 20,
            range_bytes=1 << 20,
            replaced_retention_ms=5_000,
        )
        compact_partitions(
            StoreAccess(self.topic.objects, self._seed()),
            [(self._remote_path(), settings)],
            runner=LocalRunner(),
            clock=self.topic.kit.clock,
            random=self._seed(),
            histories={},
        )

    def erase(self) -> None:
        """The job has the directory for itself: no server runs."""
        self._erase(hot=True)

    def erase_bucket(self) -> None:
        """The job erases what the bucket has, beside a server that has the directory."""
        self._erase(hot=False)

    def _erase(self, *, hot: bool) -> None:
        self._may("erase")
        bench = ErasureBench(self.topic, seed=1000 + self._seed().randrange(1000))
        result = bench.erase(SECRET.decode(), objects=self.topic.objects, hot=hot)
        if hot and result.receipt is not None:
            self.has_receipt = True

    def snapshot(self) -> None:
        take_snapshot(
            TOPIC,
            f"file://{self.path}/snapshots",
            address=self.address,
            directories=[self.topic.kit.path],
            settings=SnapshotSettings(bucket_bytes=400, buckets=2, grace_ms=0),
            runner=LocalRunner(),
            clock=self.topic.kit.clock,
        )

    def table(self) -> None:
        self.topic.log.flush()
        sync_table(
            TOPIC,
            TABLE,
            catalog=self._catalog(),
            address=self.address,
            directories=[self.topic.kit.path],
            settings=TableSettings(),
            runner=LocalRunner(),
            clock=self.topic.kit.clock,
        )

    def expire_table(self) -> None:
        expire_snapshots(self._catalog(), TABLE, older_than_ms=1 << 60)

    def dedup(self) -> None:
        with Deduplicator.open(
            self.store,
            TOPIC,
            "out",
            _RULES,
            state="/state",
            databases=MemoryDatabases(self.topic.disk),
            file_system=self.topic.disk,
            clock=self.topic.kit.clock,
            random=self._seed(),
        ) as dedup:
            dedup.run_once()

    def delete_records(self) -> None:
        self._may("expire")
        self.store.topic(TOPIC).delete_records(7, partition=0)

    def alter(self) -> None:
        self._may("expire")
        self.store.alter_topic(TOPIC, {"retention.ms": 9 * MINUTE, "segment.bytes": 1_000})

    def leave_tier(self) -> None:
        self._may("expire", "leave")
        changes = {"remote.storage.enable": False, "remote.log.delete.on.disable": True}
        self.store.alter_topic(TOPIC, changes)

    def return_to_tier(self) -> None:
        """Off and on again: what is on the local disk is copied once more."""
        self.leave_tier()
        self.store.alter_topic(TOPIC, {"remote.storage.enable": True})
        self.copy_segments()

    def recreate(self) -> None:
        self._may("recreate")
        self.store.delete_topic(TOPIC)
        settings = {"remote.storage.enable": True, "file.delete.delay.ms": 0}
        self.store.create_topic(TOPIC, settings=settings)

    def lose_end(self) -> None:
        """What no replica has is cut off, as after an unclean election."""
        with self._lock:
            self._may("lose")
            log = self.topic.log
            offset = log.end_offset - 2
            log.truncate_to(offset)
            lost = self.known.lost_from
            self.known.lost_from = offset if lost is None else min(offset, lost)

    def restore(self) -> None:
        """Into a directory of its own."""
        manifests = self.topic.tiered.manifests
        plan = plan_restore(manifests, manifests.load())
        with hold_log_directory(self.topic.disk, "/restored", cluster=plan.path.cluster):
            restore_partition(
                self.topic.objects,
                plan,
                self.topic.disk,
                "/restored",
                clock=self.topic.kit.clock,
            )

    def follow(self) -> None:
        """A shape of the topic takes what there is."""
        if self._engine is None:
            self._engine = self._open_engine()
            self._engine.find_or_create(define(TOPIC))
        for _ in range(100):
            if not self._engine.run_turn(TOPIC) and self._engine.is_caught_up(TOPIC):
                return

    def _open_engine(self) -> ShapeEngine:
        (self.path / "shapes").mkdir(exist_ok=True)
        engine = ShapeEngine(
            str(self.path / "shapes"),
            lambda topic: build_feed(
                StoreCluster(self.store).reader(topic),
                self.path / "shapes" / "tables",
                clock=self.topic.kit.clock,
            ),
            fs=RealFileSystem(),
            clock=self.topic.kit.clock,
            random=self._seed(),
        )
        return engine.open(maintain=False)

    def sink(self) -> None:
        """One epoch of a stream, which may be tried again."""
        topic = self.store.topic(TOPIC)
        target = SinkTarget(TOPIC, topic_id_of(topic), topic.partition_count, topic.settings)
        staging = Staging(MemoryObjectStore(), "sink")
        builder = BatchBuilder(target, packaging_for(target.settings, Codec.LZ4), 0)
        rows = [{"key": key, "value": value, "partition": 0} for key, value in SUNK]
        write = EpochWrite(
            sink_id="sink",
            query="q",
            is_once=False,
            epoch=1,
            tasks=[staging.stage([batch_of(rows)], builder, TOPIC)],
            skips_repeated=True,
        )
        states = SinkStateFile(self.topic.disk, [self.topic.kit.path])
        commit = DirectoryCommit(
            self.store, states, clock=self.topic.kit.clock, random=self._seed()
        )
        commit.commit(write, target, staging)

    def _may(self, *reasons: str) -> None:
        self.known.reasons.update(reasons)

    def _remote_path(self) -> Any:
        return self.topic.tiered.path

    def _catalog(self) -> CatalogAddress:
        return CatalogAddress(str(self.path / "tables"))

    # The judge

    def judge(self) -> None:
        """Everything is sound, and everything that is missing has a reason."""
        with self._jobs_here():
            self._restart()
            self._settle()
            found = self._read()
            self._check_records(found)
            self._check_tools()
            self._check_outputs(found)
            if self.has_receipt:
                self._check_erased()

    def _restart(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self.store.close()
        self.topic.kit._store = None
        errors = [one for one in self.topic.kit.check() if one.severity is Severity.ERROR]
        assert not errors, errors
        self.topic.kit._open()

    def _settle(self) -> None:
        """The background work goes on for a while, and no limit removes anything more."""
        if self.topic.log.settings.is_compacted:
            self._may("compact")
        self.store.alter_topic(TOPIC, {"retention.ms": -1, "local.retention.ms": -2})
        if "sink" in self.names and "recreate" not in self.known.reasons:
            self.sink()
        for _ in range(2):
            self.topic.kit.advance(milliseconds=_LATER_MS)
            self.topic.kit.run_background()
        health = self.store.health()
        assert not health.tier, health.tier
        assert not health.retention, health.retention

    def _read(self) -> dict[int, Cell]:
        topic = self.store.topic(TOPIC)
        records = topic.read(isolation="read_committed")
        return {record.offset: (record.key, record.value) for record in records}

    def _check_records(self, found: dict[int, Cell]) -> None:
        known, reasons = self.known, self.known.reasons
        cells = [*known.records.values(), *SUNK]
        assert all(cell in cells for cell in found.values()), "a record that was never appended"
        sunk = [cell for cell in found.values() if cell in SUNK]
        assert len(sunk) == len(set(sunk)), "an epoch was written twice"
        if "recreate" in reasons:
            return
        start = self.topic.log.log_start_offset
        assert start == 0 or "expire" in reasons, f"the log starts at {start}"
        end = self.topic.log.end_offset if known.lost_from is None else known.lost_from
        for offset, cell in known.records.items():
            if offset not in found and start <= offset < end:
                assert self._may_be_gone(offset, cell), f"{cell} at offset {offset} is missing"

    def _may_be_gone(self, offset: int, cell: Cell) -> bool:
        """Whether an activity may have removed a record from one tier, perhaps not from the other.

        A record that the local log has no longer may be read again where the bucket has it.
        """
        key, value = cell
        reasons = self.known.reasons
        later = [one for one, (name, _) in self.known.records.items() if name == key]
        is_superseded = max(later, default=-1) > offset or any(key == name for name, _ in SUNK)
        return ("compact" in reasons and (is_superseded or value is None)) or (
            "erase" in reasons and key == SECRET
        )

    def _check_tools(self) -> None:
        log = self.topic.log
        log.flush()
        report = audit_partition(self.topic.disk, log.directory, deep=True)
        removals = [one for one in report.findings if one.rule not in self._tolerated()]
        assert not removals, removals
        remote = fsck(
            self.topic.bucket,
            self.topic.tiered.path.cluster,
            now_ms=self.topic.kit.now_ms,
            options=FsckOptions(deep=True, settle_ms=-(1 << 50)),
            random=random.Random(1),
            wait=lambda wait_ms: None,
        )
        damage = [one for one in remote.damage if not self._is_left_behind(one)]
        assert not damage, damage
        if self.topic.manifest().version:
            (verdict,) = verify_partitions(
                StoreAccess(self.topic.objects, random.Random(5)),
                [self.topic.tiered.path],
                runner=LocalRunner(),
                now_ms=self.topic.kit.now_ms,
            )
            findings = [one for one in verdict.findings if one.is_damage]
            assert not findings, findings

    def _is_left_behind(self, damage: Damage) -> bool:
        """A job wrote objects of a topic that was deleted meanwhile, which fsck reports."""
        is_gone = self.known.reasons & {"recreate", "leave"}
        return bool(is_gone) and "holds no version" in damage.message

    def _tolerated(self) -> set[str]:
        """The end of a log is cut by what varve never does itself: its records say so."""
        return {"output-changed"} if "lose" in self.known.reasons else set()

    def _check_outputs(self, found: dict[int, Cell]) -> None:
        """Each output, brought up to date, has what a new one would have.

        What was erased from an output before the log stays out of it.
        """
        if "erase" in self.known.reasons:
            found = {at: cell for at, cell in found.items() if cell[0] != SECRET}
        checks = {
            "snapshot": self._check_snapshot,
            "table": self._check_table,
            "dedup": self._check_dedup,
            "follow": self._check_shape,
        }
        for name, check in checks.items():
            if name in self.names:
                self._update(name, check, found)

    def _update(
        self, name: str, check: Callable[[dict[int, Cell]], None], found: dict[int, Cell]
    ) -> None:
        try:
            getattr(self, name)()
        except StoreError as error:
            # A deduplication says so when records expired that it has not read.
            has_expired = type(error) is OffsetOutOfRange and "expire" in self.known.reasons
            if not (has_expired or self.known.reasons & {"recreate", "lose", "leave"}):
                raise
        else:
            check(found)

    def _latest(self, found: dict[int, Cell]) -> dict[bytes | None, tuple[int, bytes]]:
        latest: dict[bytes | None, tuple[int, bytes]] = {}
        for offset, (key, value) in sorted(found.items()):
            latest.pop(key, None)
            if value is not None:
                latest[key] = (offset, value)
        return latest

    def _check_snapshot(self, found: dict[int, Cell]) -> None:
        rows = rows_of(open_snapshot(f"file://{self.path}/snapshots"))
        state = {key: row for (_, key), row in rows.items()}
        if "erase" in self.known.reasons:
            state.pop(SECRET, None)
        assert state == self._latest(found)

    def _check_table(self, found: dict[int, Cell]) -> None:
        table = self._catalog().open().load_table(TABLE)
        rows = table.scan().to_arrow().to_pylist()
        cells = {row["_offset"]: (row["_key"], row["value"]) for row in rows}
        assert len(cells) == len(rows), "an offset stands twice"
        self._check_taken(found, found.keys() - cells.keys())

    def _check_dedup(self, found: dict[int, Cell]) -> None:
        values = [one.value for one in self.store.topic("out").read(isolation="read_committed")]
        assert len(values) == len(set(values)), "a record was copied twice"
        missing = {at for at, (_, value) in found.items() if value not in {*values, None}}
        self._check_taken(found, missing)

    def _check_taken(self, found: dict[int, Cell], missing: Set[int]) -> None:
        """An output lacks nothing, unless it was compacted before the output read it."""
        lost = {at: found[at] for at in missing if not self._may_be_gone(at, found[at])}
        assert not lost, lost

    def _check_shape(self, found: dict[int, Cell]) -> None:
        assert self._engine is not None
        feed = self._engine._find_feed(TOPIC)
        assert feed is not None
        if self.known.reasons & {"expire", "erase"}:
            return  # rows of expired records stay
        with feed.view() as view:
            rows = {key: row["n"] for key, row in view.rows()}
        latest = self._latest(found)
        assert rows == {
            row_key_of((key or b"").decode()): str(json.loads(value)["n"]).encode()
            for key, (_, value) in latest.items()
        }

    def _check_erased(self) -> None:
        secret = SECRET_TEXT.encode()
        for entry in self.topic.bucket.list(""):
            assert secret not in bytes(self.topic.bucket.get(entry.key)), entry.key
        directory = self.topic.log.directory
        for name in self.topic.disk.names(directory):
            path = f"{directory}/{name}"
            if not self.topic.disk.info(path).is_directory:
                assert secret not in self.topic.disk.read(path), path
