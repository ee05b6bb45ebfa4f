"""One compacted partition on a disk that can break: written, rolled, cleaned, crashed, read back.

What was appended is remembered as it was, so that everything a cleaned log shows can be compared
with the log as it would be had nothing ever been removed.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from tests.support.cleaning_model import ModelBatch, Shell
from tests.support.log_model import LogModel, read_all, read_committed, split_batches
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.metrics import CleanReport
from varve.cleaning.settings import CleanerSettings
from varve.commit_log import Log, LogManager, LogSettings, StoreSettings, TopicPartition
from varve.commit_log.log_directory import LogDirectory
from varve.disk import FileSystem, PowerLoss
from varve.foundation.clock import ManualClock
from varve.records import Codec, Record, build_batch
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
NOW_MS = 1_700_000_000_000
RETENTION_MS = 10_000
DIRECTORY = f"/d/{PARTITION}"


def compacted(**settings: Any) -> LogSettings:
    """Settings of a compacted topic that is cleaned exactly as Kafka would."""
    given: dict[str, Any] = {
        "cleanup_policy": ("compact",),
        "min_stale_ratio": 0.0,
        "retention_time": "event",
        "delete_retention_ms": RETENTION_MS,
        "segment_bytes": 1 << 20,
        "index_interval_bytes": 150,
        "file_delete_delay_ms": 1000,
        **settings,
    }
    return LogSettings(**given)


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """One segment as its data file has it; `end_offset` is where the next segment begins."""

    base_offset: int
    end_offset: int
    size: int
    batches: tuple[ModelBatch, ...]

    @property
    def data(self) -> bytes:
        return b"".join(batch.data or b"" for batch in self.batches)


@dataclass
class CleaningBench:
    """A store with one partition, a cleaner over it, and the history of its appends."""

    settings: LogSettings = field(default_factory=compacted)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    disk: FileSystem = None  # type: ignore[assignment]  # a faulty one unless another is given
    cleaner_settings: CleanerSettings = field(default_factory=CleanerSettings)
    store: LogManager = field(init=False)
    cleaner: LogCleaner = field(init=False)
    history: LogModel = field(default_factory=LogModel)
    path: str = "/d"
    has_forgotten: bool = False

    def __post_init__(self) -> None:
        if self.disk is None:
            self.disk = FaultyFileSystem(self.clock)
        self.open()
        if PARTITION not in self.store.partitions:
            self.store.create(PARTITION, TOPIC_ID)

    @property
    def faulty(self) -> FaultyFileSystem:
        assert isinstance(self.disk, FaultyFileSystem)
        return self.disk

    @property
    def log(self) -> Log:
        return self.store.get(PARTITION)

    @property
    def directory(self) -> LogDirectory:
        found = self.store.directory_of(PARTITION)
        assert found is not None
        return found

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    # The life of the store

    def open(self) -> None:
        self.store = LogManager(
            [self.path],
            fs=self.disk,
            clock=self.clock,
            random=random.Random(3),
            topic_settings=lambda topic: self.settings,
        ).open()
        self.cleaner = LogCleaner(self.store, clock=self.clock, settings=self.cleaner_settings)

    def reopen(self, **settings: Any) -> None:
        """Closes in order and opens again, perhaps with other settings."""
        self.store.close()
        self.settings = replace(self.settings, **settings)
        self.open()

    def crash(self, mode: CrashMode = CrashMode.KEEP_ALL, seed: int = 0) -> None:
        """The machine ends here; the log may lose its unsynced end."""
        self.disk = self.faulty.after_crash(mode, seed)
        self.open()
        self.history.truncate_to(self.log.end_offset)
        self.history.end_offset = self.log.end_offset

    def copy(self) -> "CleaningBench":
        """The same files opened by another process, after this one was killed."""
        return self.on(self.faulty.after_crash(CrashMode.KEEP_ALL))

    def on(self, disk: FaultyFileSystem) -> "CleaningBench":
        """The same partition as a new process finds it on this disk; nothing is shared."""
        return replace(self, clock=ManualClock(self.now_ms), disk=disk, history=self.history.copy())

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    # Appends

    def put(self, key: str, value: str | None, **batch: Any) -> int:
        """One record in a batch of its own: its offset."""
        record = Record(
            key.encode(), None if value is None else value.encode(), timestamp=self.now_ms
        )
        return self.append([record], **batch)

    def append(
        self,
        records: Iterable[Record],
        *,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
        transactional: bool = False,
    ) -> int:
        """One batch, with the sequence that is due if it has a producer: its base offset."""
        known = self.log.producers.entries.get(producer_id)
        sequence = -1 if producer_id < 0 else 0 if known is None else known.last_sequence + 1
        is_inside = known is not None and known.transaction_first_offset is not None
        batch = build_batch(
            list(records),
            codec=codec,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0 if known is None else known.epoch,
            base_sequence=sequence,
            transactional=transactional or is_inside,
        )
        return self._remember(self.log.append(batch).base_offset)

    def end_transaction(self, producer_id: int, *, committed: bool, bumps: bool = False) -> int:
        """With `bumps` the marker begins a new producer epoch (KIP-890)."""
        known = self.log.producers.entries.get(producer_id)
        epoch = 0 if known is None else known.epoch
        result = self.log.end_transaction(
            producer_id=producer_id, producer_epoch=epoch + bumps, committed=committed
        )
        return self._remember(result.base_offset)

    def append_without_keys(self, records: Iterable[Record], **batch: Any) -> None:
        """Records as they may stand in a topic that was not compacted when they were written."""
        policy = self.settings.cleanup_policy
        self.reopen(cleanup_policy=("delete",))
        self.append(records, **batch)
        self.reopen(cleanup_policy=policy)

    def forget_producers(self) -> None:
        """So much time passes that every producer without an open transaction is forgotten."""
        self.advance(StoreSettings().producer_id_expiration_ms + 1)
        self.log.expire_producers(self.now_ms)
        self.has_forgotten = True

    def _remember(self, base_offset: int) -> int:
        (data, *_) = split_batches(self.log.read(start_offset=base_offset, max_bytes=1).data)
        self.history.append(data)
        return base_offset

    def roll(self) -> None:
        self.log.roll()

    # Cleaning

    def clean(self) -> CleanReport:
        return self.cleaner.clean(PARTITION, self.now_ms)

    @contextmanager
    def power_fails_after(self, steps: int) -> Iterator[None]:
        """Within it the power goes at that step; what is left is for `crash` to find."""
        self.faulty.crash_at(self.faulty.steps + steps)
        try:
            yield
        except PowerLoss:
            return
        self.faulty.mend()

    # What stands in the files

    def segments(self) -> list[SegmentContent]:
        """Every segment, the active one last, by its data file and not by any index."""
        view = self.log.view
        bases = [segment.base_offset for segment in view]
        ends = [*bases[1:], self.log.end_offset]
        return [
            self._content(base, end, segment.size)
            for base, end, segment in zip(bases, ends, view, strict=True)
        ]

    def _content(self, base: int, end: int, size: int) -> SegmentContent:
        data = self.disk.read(f"{self.path}/{PARTITION}/{base:020d}.log")[:size]
        batches = tuple(ModelBatch.of(batch) for batch in split_batches(data))
        return SegmentContent(base, end, size, batches)

    def batches(self) -> list[ModelBatch]:
        return [batch for segment in self.segments() for batch in segment.batches]

    def offsets(self) -> list[int]:
        """The offsets of all records in the log, markers too."""
        return [record.offset for batch in self.batches() for record in batch.records]

    def names(self) -> list[str]:
        return self.disk.names(f"{self.path}/{PARTITION}")

    def shells(self) -> dict[int, Shell]:
        """The producers that the log knows."""
        return {
            producer_id: Shell(
                entry.epoch, entry.batches[-1].last_offset if entry.batches else None
            )
            for producer_id, entry in self.log.producers.entries.items()
        }

    # What readers see

    def committed(self) -> list[Record]:
        return read_committed(self.log, start_offset=self.log.log_start_offset)

    def read_all(self) -> list[bytes]:
        return read_all(self.log)

    def state(self) -> dict[bytes, Record]:
        return fold(self.committed())

    def true_state(self) -> dict[bytes, Record]:
        """The latest values, had nothing ever been cleaned."""
        self.history.log_start_offset = self.log.log_start_offset
        return fold(self.history.committed_records(self.log.last_stable_offset))


def fold(records: Iterable[Record]) -> dict[bytes, Record]:
    """The table that a reader of the whole log ends up with."""
    table: dict[bytes, Record] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record
    return table
