"""A partition directory to open, fill, break and reopen, and builders of batches."""

import errno
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from varve.commit_log import (
    FetchResult,
    Isolation,
    LoadRequest,
    Log,
    LogSettings,
    RemoteLogReader,
    SegmentFiles,
    TopicPartition,
)
from varve.commit_log.names import log_name
from varve.commit_log.offset_checkpoints import OffsetCheckpoint
from varve.disk import FileSystem
from varve.foundation.clock import ManualClock
from varve.records import Batch, Record, build_batch, end_transaction_marker
from varve.testing.faulty_disk import FaultyFileSystem

DIRECTORY = "data/topic-0"
NOW_MS = 1_700_000_000_000
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")


@dataclass
class Bench:
    """One partition directory, and the log that is open on it."""

    fs: FileSystem
    clock: ManualClock
    settings: LogSettings = field(default_factory=LogSettings)
    is_alone: bool = True
    remote: RemoteLogReader | None = None
    log: Log = field(init=False)

    def open(self, **request: Any) -> Log:
        """Opens the directory; offsets and cleanliness as the directory's checkpoints tell."""
        self.fs.make_directory(DIRECTORY)
        for made_in in (".", "data"):
            self.fs.sync_directory(made_in)
        high_watermark = request.pop("high_watermark", 0)
        self.log = Log.open(
            LoadRequest(
                files=SegmentFiles(self.fs),
                directory=DIRECTORY,
                topic_partition=TopicPartition("topic", 0),
                settings=self.settings,
                clock=self.clock,
                random=random.Random(7),
                **request,
            ),
            is_alone=self.is_alone,
            high_watermark=high_watermark,
        )
        self.log.attach_remote(self.remote)
        return self.log

    def reopen(self, **request: Any) -> Log:
        """Closes in order and opens as after a clean stop."""
        request = {"clean": True, "recovery_point": self.log.end_offset, **request}
        request.setdefault("log_start_offset", self.log.log_start_offset)
        self.log.close()
        return self.open(**request)

    def crash(self, **request: Any) -> Log:
        """Drops the log without closing and opens as after an unclean stop."""
        self.log.abandon()
        return self.open(**request)

    def set(self, **settings: Any) -> "Bench":
        self.settings = LogSettings(**settings)
        return self

    def fill(self, *segments: int, count: int = 1, **batch: Any) -> Log:
        """Appends batches of `count` records: so many to each segment, rolled in between."""
        for number, batches in enumerate(segments):
            if number:
                self.log.roll()
            for _ in range(batches):
                self.log.append(make_batch(count, **batch))
        return self.log

    def path(self, offset: int, kind: str) -> str:
        return f"{DIRECTORY}/{log_name(offset, kind)}"

    def names(self, *kinds: str) -> list[str]:
        names = [name for name in self.fs.names(DIRECTORY) if name[0].isdigit()]
        return [name for name in names if not kinds or name.endswith(kinds)]

    def write(self, offset: int, kind: str, data: bytes) -> None:
        with self.fs.open_writable(self.path(offset, kind)) as file:
            file.write_at(0, data)
            file.truncate(len(data))

    def read_file(self, offset: int, kind: str = ".log") -> bytes:
        return self.fs.read(self.path(offset, kind))


def before_write(checkpoint: OffsetCheckpoint, act: Callable[[], None]) -> None:
    """Calls `act`, which may raise, before each write of a checkpoint."""
    write = checkpoint._write_locked

    def write_after(offsets: Mapping[TopicPartition, int | None]) -> None:
        act()
        write(offsets)

    checkpoint._write_locked = write_after  # type: ignore[method-assign]  # a slow or full disk


def make_batch(
    count: int = 1,
    *,
    value: bytes = b"value",
    key: bytes | None = b"key",
    time: int = 0,
    **fields: Any,
) -> bytes:
    """A batch of equal records; `time` counts from the clock's beginning, -1 means none at all."""
    timestamp = -1 if time == -1 else NOW_MS + time
    return build_batch([Record(key, value, timestamp=timestamp)] * count, **fields)


def make_marker(
    committed: bool, producer_id: int = 1, epoch: int = 0, coordinator: int = 0
) -> bytes:
    return end_transaction_marker(
        committed=committed,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator,
        timestamp=NOW_MS,
    )


def split_batches(data: bytes | memoryview) -> list[Batch]:
    """The batches of a fetch or a data file."""
    batches = []
    data = bytes(data)
    while data:
        batch = Batch(data)
        batches.append(Batch(data[: batch.header.size]))
        data = data[batch.header.size :]
    return batches


def offsets_in(data: bytes | memoryview | FetchResult) -> list[int]:
    """The offsets of all records, control records included."""
    data = data.data if isinstance(data, FetchResult) else data
    return [record.offset for batch in split_batches(data) for record in batch.records()]


def read_all(log: Log, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[int]:
    """Every offset a reader sees that goes on where its last read ended."""
    offset = log.log_start_offset
    found: list[int] = []
    while True:
        fetched = log.read(start_offset=offset, isolation=isolation, max_bytes=1 << 20)
        if fetched.next_offset == offset:
            return found
        found += offsets_in(fetched)
        offset = fetched.next_offset


@dataclass
class FaultyBench(Bench):
    """The same on a disk whose next steps can fail."""

    fs: FaultyFileSystem

    def fail_next(self, error: OSError, *, after_steps: int = 0) -> None:
        """The changing call after so many good ones fails."""
        self.fs.fail_at(self.fs.steps + 1 + after_steps, error)
