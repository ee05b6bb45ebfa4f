"""One topic in two tiers on a disk and an object store that can both break, beside its model.

Everything goes through an open store; what the object store holds is looked at in the bucket
itself. A step that a crash cuts short leaves one of the states that it was on its way between.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.support.lab import let_no_time_pass
from tests.support.tiered_store_model import Extent, TieredModel
from varve.commit_log import Log, TopicPartition
from varve.commit_log.names import LOG_START_OFFSET_FILE
from varve.commit_log.producer_state import AppendOrigin
from varve.disk import PowerLoss
from varve.foundation.errors import Unavailable
from varve.object_store import MemoryObjectStore
from varve.records import Record, build_batch, edit_batch, end_transaction_marker
from varve.testing import FaultKind, FaultyObjectStore, ObjectFaultPlan, VirtualStore
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.tiering.fsck import FsckOptions, FsckReport, fsck
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.manifest.store import ObjectManifestStore

TOPIC = "orders"
PARTITION = TopicPartition(TOPIC, 0)
STORE_SETTINGS = {
    "varve.tier.grace.ms": 1_000,
    "varve.tier.manifest.retention.ms": 5_000,
    "varve.tier.read.ahead.max.bytes": 0,  # it would make the order of requests a matter of chance
    "producer.id.expiration.ms": (1 << 31) - 1,
    "log.cleaner.backoff.ms": 0,
}
TOPIC_SETTINGS: dict[str, str | int | float | bool] = {
    "remote.storage.enable": True,
    "segment.bytes": 700,
    "segment.ms": 1 << 40,
    "index.interval.bytes": 150,
    "retention.ms": 3_600_000,
    "local.retention.ms": 1_000,
    "file.delete.delay.ms": 0,
    "min.cleanable.dirty.ratio": 0.0,
    "delete.retention.ms": 0,
}
SETTLE_MS = 700_000
"""Longer than the longest wait of a copy that failed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong at the so many-th step from now, 1 being the next."""

    where: str
    """"disk", or "objects"."""
    after: int
    kind: FaultKind | None = None
    """Of a request; None for a second writer of the manifest that comes in between."""

    @property
    def is_crash(self) -> bool:
        return self.where == "disk" or self.kind in (FaultKind.CRASH_AFTER, FaultKind.CRASH_BEFORE)


class MeetingPlan(ObjectFaultPlan):
    """A plan that lets something else happen in front of a chosen request."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting: tuple[int, Callable[[], None]] | None = None

    def find_fault(self, step: int) -> FaultKind | None:
        if self.meeting is not None and self.meeting[0] == step:
            _, meet = self.meeting
            self.meeting = None
            meet()
        return super().find_fault(step)


@dataclass(slots=True)
class TieredStore:
    """A virtual store with one topic, its bucket, and what it has acknowledged."""

    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    seed: int = 0
    bucket: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    model: TieredModel = field(default_factory=TieredModel)
    plan: MeetingPlan = field(init=False)
    objects: FaultyObjectStore = field(init=False)
    kit: VirtualStore = field(init=False)
    home: RemotePath = field(init=False)
    sent: int = 0
    epoch: int = 0
    """Leader epochs never go back, whatever a cut log remembers of them."""
    durable_end: int = 0
    had_trouble: bool = False
    """A crash or a failed request may have left orphans."""
    is_down: bool = False
    pending: bytes | None = None
    """A batch whose append was under way when the power went."""
    starts: set[int] = field(default_factory=set)
    """Log starts that the step under way may lead to, if it does not expire anything."""
    expires: bool = False

    def __post_init__(self) -> None:
        self._connect()
        self.kit = VirtualStore(settings=STORE_SETTINGS, seed=self.seed, objects=self.objects)
        self.kit.store.create_topic(TOPIC, settings={**TOPIC_SETTINGS, **self.settings})
        let_no_time_pass(self.kit.store.tier)
        self.home = self.kit.store.tier.partitions.get(PARTITION).path

    def _connect(self) -> None:
        self.plan = MeetingPlan()
        self.objects = FaultyObjectStore(self.bucket, self.plan)
        if self.is_down:
            self.objects.go_down()

    @property
    def log(self) -> Log:
        return self.kit.store.topic(TOPIC).partition().log

    @property
    def disk(self) -> FaultyFileSystem:
        fs = self.kit.fs
        assert isinstance(fs, FaultyFileSystem)
        return fs

    def manifests(self) -> ObjectManifestStore:
        """The manifest as another process sees it."""
        return ObjectManifestStore(
            self.bucket,
            self.home,
            random=random.Random(self.bucket_steps()),
            wait=lambda wait_ms: None,
            grace_ms=1_000,
        )

    def bucket_steps(self) -> int:
        self.sent += 1
        return self.seed * 7919 + self.sent

    def remote(self) -> list[RemoteSegment]:
        manifests = self.manifests()
        return list(manifests.segments(manifests.load()))

    def copied_end(self) -> int:
        return self.manifests().load().highest_offset + 1

    # Steps

    def append(
        self,
        keys: list[int],
        *,
        producer_id: int = -1,
        transactional: bool = False,
        new_epoch: bool = False,
        age_ms: int = 0,
    ) -> None:
        """One batch; a key below 0 is deleted."""
        known = self.model.history.producers().get(producer_id)
        is_inside = known is not None and known.transaction_first_offset is not None
        batch = build_batch(
            [self._record(key, age_ms) for key in keys],
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else self._next_sequence(producer_id),
            transactional=transactional or is_inside,
        )
        self._append(batch, AppendOrigin.CLIENT, new_epoch)

    def append_all(self, batches: list[list[int]], **batch: Any) -> None:
        for keys in batches:
            self.append(keys, **batch)

    def _record(self, key: int, age_ms: int) -> Record:
        self.sent += 1
        value = None if key < 0 else b"value-%d-" % self.sent + b"x" * (self.sent % 60)
        return Record(b"key-%d" % abs(key), value, timestamp=self.kit.now_ms - age_ms)

    def _next_sequence(self, producer_id: int) -> int:
        known = self.model.history.producers().get(producer_id)
        entry = self.log.producers.entries.get(producer_id)
        is_forgotten = entry is None or not entry.batches
        if known is None or (is_forgotten and self.model.history.is_deleted(producer_id)):
            return 0
        return known.last_sequence + 1

    def _append(self, batch: bytes, origin: AppendOrigin, new_epoch: bool = False) -> None:
        self.epoch += new_epoch
        stored = bytes(edit_batch(batch, base_offset=self.model.end, leader_epoch=self.epoch))
        self.pending = stored
        result = self.log.append(batch, origin=origin, leader_epoch=self.epoch)
        assert not result.is_duplicate
        assert result.base_offset == self.model.end
        self.model.history.append(stored)
        self.pending = None
        self._note_durable()

    def repeat(self, producer_id: int) -> None:
        """An idempotent producer sends its last batch again: it is recognised, wherever it lies."""
        batches = [
            one for one in self.model.history.visible() if one.header.producer_id == producer_id
        ]
        if not batches or batches[-1].is_marker:
            return
        result = self.log.append(edit_batch(batches[-1].data, base_offset=0, leader_epoch=-1))
        assert result.is_duplicate
        assert result.base_offset == batches[-1].base_offset

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        known = self.model.history.producers().get(producer_id)
        if known is None or known.transaction_first_offset is None:
            return
        if known.transaction_first_offset < self.model.start:
            return  # What is left of it after a restart the log may not know.
        marker = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=self.kit.now_ms,
        )
        self._append(marker, AppendOrigin.COORDINATOR)

    def _note_durable(self) -> None:
        self.durable_end = max(self.durable_end, min(self.log.recovery_point, self.model.end))

    def flush(self) -> None:
        self.log.flush()
        self._note_durable()

    def roll(self) -> None:
        self.log.roll()
        self._note_durable()

    def delete_records(self, share: float) -> None:
        """Up to a share of what there is, wherever it lies."""
        if "delete" not in self.log.settings.cleanup_policy:
            return
        start = self.model.start
        before = start + round(share * (self.log.high_watermark - start))
        self.starts = {before}
        assert self.log.delete_records(before) == before
        self.durable_end = max(self.durable_end, before)

    def truncate(self, share: float) -> None:
        """Takes back some of what is not copied; compaction may have relied on what would go."""
        log = self.log
        if self.model.was_compacted or log.settings.is_compacted:
            return
        lowest = max(self.copied_end(), log.local_start_offset, self.model.start)
        self._cut(lowest + round(share * max(0, log.end_offset - lowest)))

    def diverge(self, share: float) -> None:
        """As after an unclean election: what was copied is cut too, and a new epoch begins."""
        log = self.log
        if self.model.was_compacted or log.settings.is_compacted:
            return
        lowest = max(log.local_start_offset, self.model.start)
        self._cut(lowest + round(share * max(0, log.end_offset - lowest)))
        self.append([1], new_epoch=True)
        self.flush()

    def _cut(self, offset: int) -> None:
        if offset >= self.log.end_offset:
            return
        history = self.model.history
        # Inside a batch the log would end beyond its last one until the next append.
        offset = max(history.kept_end(offset), self.model.start)
        self.log.truncate_to(offset)
        history.truncate_to(offset)
        self.durable_end = min(self.durable_end, offset)
        if not self.log.epochs or self.log.epochs[-1].epoch < self.epoch:
            self.append([2])  # A leader goes on in its own epoch.
            self.flush()

    def alter(self, changes: dict[str, Any], local_ms: int | None = None) -> None:
        """Other settings; leaving the tier takes what is only there."""
        if local_ms is not None and not self.log.settings.remote_log_copy_disable:
            changes = {**changes, "local.retention.ms": local_ms}
        is_leaving = changes.get("remote.storage.enable") is False
        if is_leaving and self.log.settings.remote_storage_enable:
            self.starts = {max(self.log.local_start_offset, self.model.start)}
        self.kit.store.alter_topic(TOPIC, changes)

    def run_once(self) -> None:
        self.expires = True
        self._note_cleaning()
        self.kit.run_background()
        self._note_durable()

    def copy(self) -> None:
        if self.log.settings.copies_to_tier:
            report = self.kit.store.tier.copy(PARTITION, self.kit.now_ms)
            if not self.had_trouble and not self.is_down:
                assert report.error is None
            self._note_durable()

    def expire(self) -> None:
        self.expires = True
        if self.log.settings.remote_storage_enable:
            self.kit.store.tier.expire(PARTITION, self.kit.now_ms)

    def clean(self) -> None:
        self.expires = True
        self._note_cleaning()
        self.kit.clean_now(TOPIC)

    def _note_cleaning(self) -> None:
        settings = self.log.settings
        if settings.is_compacted:
            self.model.was_compacted = True
            self.model.may_lack_tombstones |= not settings.remote_storage_enable

    def set_down(self, is_down: bool) -> None:
        self.is_down = is_down
        self.had_trouble |= is_down
        if is_down:
            self.objects.go_down()
        else:
            self.objects.come_up()

    def meet_writer(self) -> None:
        """Another process commits to the manifest: a copy that it begins and leaves behind."""
        manifests = self.manifests()
        if not manifests.load().version:
            return
        offset = 1_000_000 + self.sent
        segment = RemoteSegment(
            id=f"{self.sent:022d}",
            base_offset=offset,
            end_offset=offset,
            size=0,
            record_count=0,
            max_timestamp=-1,
            append_ms=(0, 0),
            epochs=((0, offset),),
            parts=(),
            has_aborted=False,
            state=SegmentState.COPY_STARTED,
            at_ms=self.kit.now_ms,
        )
        manifests.commit(
            lambda manifest: manifest.announce(segment).raise_log_start(self.model.start),
            leader_epoch=None,
            writer="another",
            now_ms=self.kit.now_ms,
        )

    # Faults and starts

    @contextmanager
    def step(self, fault: Fault | None, mode: CrashMode) -> Iterator[None]:
        """One step, in which something goes wrong; afterwards the store is open again."""
        before = self._extents()
        self.starts, self.expires, self.pending = set(), False, None
        self._arm(fault)
        try:
            yield
        except PowerLoss:
            assert fault is not None
            assert fault.is_crash
            self.crash(mode)
        except Unavailable:
            assert fault is not None or self.is_down
        self._disarm()
        self._take_start(before)

    def _arm(self, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.where == "disk":
            self.disk.crash_at(self.disk.steps + fault.after)
        elif fault.kind is None:
            self.plan.meeting = (self.objects.steps + fault.after, self.meet_writer)
        else:
            self.had_trouble = True
            self.objects.fail_at(self.objects.steps + fault.after, fault.kind)

    def _disarm(self) -> None:
        self.disk.mend()
        self.plan.meeting = None
        self.plan._chosen.clear()

    def _extents(self) -> list[Extent]:
        """The segments of both tiers; where local ones were joined, those of the cold tier tell."""
        log = self.log
        bases = [segment.base_offset for segment in log.view]
        ends = [*bases[1:], log.end_offset]
        local = {Extent(base, end) for base, end in zip(bases, ends, strict=True)}
        remote = {Extent(one.base_offset, one.end_offset + 1) for one in self.remote()}
        return sorted(local | remote, key=lambda extent: (extent.base_offset, extent.next_offset))

    def _take_start(self, extents: list[Extent]) -> None:
        log = self.log
        start = log.log_start_offset
        if start != self.model.start and start not in self.starts:
            assert self.expires, f"the log start went from {self.model.start} to {start}"
            assert start > self.model.start
            extents = sorted(
                {*extents, *self._extents()}, key=lambda one: (one.base_offset, one.next_offset)
            )
            self.model.check_expiry(start, extents, log.settings, self.kit.now_ms)
        self.model.history.log_start_offset = start

    def crash(self, mode: CrashMode) -> None:
        self.had_trouble = True
        start = self.model.start
        acked = self.model.end
        self.kit.crash_now()
        self._connect()
        self.kit.objects = self.objects
        self.kit.reopen(mode)
        let_no_time_pass(self.kit.store.tier)
        log = self.log
        assert log.log_start_offset >= start or not log.is_start_known
        self._take_end(acked if mode is CrashMode.KEEP_ALL else self.durable_end)

    def _take_end(self, lowest: int) -> None:
        """What the next start finds is a prefix of what was sent, with all that had to be kept."""
        end, history = self.log.end_offset, self.model.history
        if self.pending is not None and end > history.end_offset:
            history.append(self.pending)
        self.pending = None
        self.model.note_undated(self.durable_end, end)
        assert history.kept_end(lowest) <= end
        assert end <= max(history.end_offset, self.log.log_start_offset)
        history.batches = [batch for batch in history.batches if batch.last_offset < end]
        history.end_offset = end
        self.durable_end = min(self.durable_end, end)

    def lose_log_start(self) -> None:
        """The checkpoint of log starts gets lost between a close and a start: the tiers must tell.

        What was deleted and is still there may come back, but nothing that a manifest let go.
        """
        if self.is_down or not self._knows_epochs():
            return  # Without leader epochs what comes back cannot be copied.
        self.reopen(loses_start=True)
        log = self.log
        lowest = log.local_start_offset
        if log.settings.remote_storage_enable:
            self.kit.store.tier.status(PARTITION)
            remote = [one.base_offset for one in self.remote() if one.is_readable]
            lowest = max(min([lowest, *remote]), self.manifests().load().log_start_offset)
        assert log.is_start_known
        assert log.log_start_offset == lowest <= max(self.model.start, log.local_start_offset)
        self.model.history.log_start_offset = lowest

    def _knows_epochs(self) -> bool:
        first = min([self.log.local_start_offset, *(one.base_offset for one in self.remote())])
        return bool(self.log.epochs) and self.log.epochs[0].start_offset <= first

    def reopen(self, *, loses_start: bool = False) -> None:
        self.kit.store.close()
        self.kit._store = None
        if loses_start:
            with suppress(FileNotFoundError):
                self.disk.remove(f"{self.kit.path}/{LOG_START_OFFSET_FILE}")
        self._connect()
        self.kit.objects = self.objects
        self.kit.reopen()
        let_no_time_pass(self.kit.store.tier)
        self.durable_end = self.model.end
        self._take_end(self.model.end)

    # What is there

    def check(self, starts: list[float], max_bytes: int = 600) -> None:
        """All that readers see, and that nothing readable is damaged."""
        log, model = self.log, self.model
        assert log.log_start_offset == model.start
        assert log.end_offset == model.end
        if self.is_down:
            model.check_local(log, max_bytes)
            return
        span = model.end - model.start
        offsets = [model.start + round(share * span) for share in starts]
        offsets.append(max(model.start, log.local_start_offset))
        model.check_reads(log, starts=offsets, max_bytes=max_bytes)
        report = self.fsck()
        assert report.damage == []
        if not self.had_trouble:
            assert report.orphans == []

    def fsck(self, *, sweeps: bool = False) -> FsckReport:
        return fsck(
            self.bucket,
            self.home.cluster,
            now_ms=self.kit.now_ms,
            options=FsckOptions(deep=True, sweep=sweeps, settle_ms=-(1 << 50)),
            random=random.Random(1),
            wait=lambda wait_ms: None,
        )

    def settle(self) -> None:
        """With all in order again, what waits is done within two rounds."""
        self.set_down(False)
        for _ in range(2):
            self.kit.advance(milliseconds=SETTLE_MS)
            with self.step(None, CrashMode.KEEP_ALL):
                self.run_once()
        health = self.kit.store.health()
        assert health.tier == {}, health.tier
        assert health.retention == {}, health.retention
        self._check_settled()
        self.check([0.3])
        report = self.fsck(sweeps=True)
        assert report.orphans == []
        assert report.foreign == []
        self.check([0.6])

    def _check_settled(self) -> None:
        log, settings = self.log, self.log.settings
        if not settings.remote_storage_enable:
            return
        readable = [one for one in self.remote() if one.is_readable]
        for one in readable:
            assert one.end_offset >= self.model.start, f"{one} lies before the log start"
        for before, after in pairwise(readable):
            assert before.end_offset < after.base_offset
        if settings.copies_to_tier:
            closed = [end for end in self._closed_ends() if end <= log.last_stable_offset]
            copied = self.copied_end()
            assert all(end <= max(copied, self.model.start) for end in closed)

    def _closed_ends(self) -> list[int]:
        view = self.log.view
        return [one.base_offset for one in view.closed[1:]] + [view.active.base_offset]
