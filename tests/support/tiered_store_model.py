"""What readers of a partition in two tiers may see, told from a plain list of what was appended.

Until a topic is compacted the log must give back every batch, byte for byte, wherever it lies. From
then on every record that is missing must have a reason: a later record of its key, an abort, or a
tombstone whose time was over. What a reader makes of the records, key by key, must stay the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.log_model import (
    LogModel,
    StoredBatch,
    filter_committed,
    split_batches,
)
from varve.commit_log import Isolation, Log, LogSettings
from varve.foundation.errors import OffsetOutOfRange
from varve.records import Record

State = dict[bytes | None, tuple[int, bytes | None]]


@dataclass(frozen=True, slots=True)
class Extent:
    """A segment in either tier: [base, next) offsets."""

    base_offset: int
    next_offset: int


@dataclass(slots=True)
class TieredModel:
    """The history of one partition from its first record on, and where its log starts."""

    history: LogModel = field(default_factory=LogModel)
    was_compacted: bool = False
    """Compaction has run at some time, so that records may be missing for good reasons."""
    may_lack_tombstones: bool = False
    """It has run while nothing was in the cold tier: tombstones may be gone too."""
    undated: set[int] = field(default_factory=set)
    """Base offsets of batches that a crash spared by chance: when they came nobody may know."""

    @property
    def start(self) -> int:
        return self.history.log_start_offset

    @property
    def end(self) -> int:
        return self.history.end_offset

    def note_undated(self, start: int, end: int) -> None:
        self.undated |= {
            batch.base_offset for batch in self.history.batches if start <= batch.base_offset < end
        }

    def bytes_behind(self, offset: int) -> int:
        """The size of all that stands at an offset or behind it."""
        return sum(len(b.data) for b in self.history.batches if b.base_offset >= offset)

    def is_expired(self, extent: Extent, settings: LogSettings, now_ms: int) -> bool:
        """Whether the topic's own limits let all records of a segment go."""
        if "delete" not in settings.cleanup_policy:
            return False
        times = [
            record.timestamp
            for batch in self.history.batches
            if extent.base_offset <= batch.base_offset < extent.next_offset
            and batch.base_offset not in self.undated
            for record in batch.records
        ]
        is_old = settings.retention_ms >= 0 and all(
            now_ms - timestamp > settings.retention_ms for timestamp in times
        )
        behind = self.bytes_behind(extent.next_offset)
        return is_old or 0 <= settings.retention_bytes <= behind

    def check_expiry(
        self, start: int, extents: Sequence[Extent], settings: LogSettings, now_ms: int
    ) -> None:
        """Every segment in front of a new log start had to go, and it begins where one ends."""
        assert start in {extent.next_offset for extent in extents}, "not at the end of a segment"
        for extent in extents:
            if self.start < extent.next_offset <= start:
                assert self.is_expired(extent, settings, now_ms), f"{extent} went too early"

    # What readers see

    def check_reads(self, log: Log, *, starts: Iterable[int], max_bytes: int) -> None:
        """Everything from the log start on, and from some other offsets, in both isolations."""
        found = list(read_batches(log, self.start, Isolation.LOG_END, max_bytes))
        self._check_stable_offset(log)
        self._check_batches(found, log.last_stable_offset)
        whole = list(_committed(log, self.start, max_bytes))
        self._check_committed(whole, log.last_stable_offset)
        for start in starts:
            again = list(read_batches(log, start, Isolation.LOG_END, max_bytes))
            assert again == [data for data in found if StoredBatch.of(data).last_offset >= start]
            committed = list(_committed(log, start, max_bytes))
            assert committed == [record for record in whole if record.offset >= start]
        self._check_outside(log)
        self._check_times(log, found)

    def _check_batches(self, found: list[bytes], stable: int) -> None:
        if not self.was_compacted:
            assert found == [batch.data for batch in self.history.visible()]
            return
        records = [record for data in found for record in StoredBatch.of(data).records]
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        known = {record.offset: record for b in self.history.batches for record in b.records}
        for record in records:
            assert record == known[record.offset], "a record that was never appended"
        self._check_missing(set(offsets), stable)

    def _check_missing(self, present: set[int], stable: int) -> None:
        committed = {record.offset for record in self.history.committed_records(stable)}
        newest: dict[bytes | None, int] = {}
        for record in self.history.committed_records(stable):
            newest[record.key] = record.offset
        for batch in self.history.visible():
            for record in batch.records:
                if record.offset in present or record.offset < self.start or batch.is_marker:
                    continue
                assert record.offset < stable, f"{record} is missing, and was never cleanable"
                if record.offset in committed and newest[record.key] == record.offset:
                    assert record.value is None, f"{record} is the last of its key, and missing"
                    assert self.may_lack_tombstones, f"tombstone {record} went too early"

    def _check_committed(self, found: list[Record], stable: int) -> None:
        wanted = self.history.committed_records(stable)
        if not self.was_compacted:
            assert found == wanted
            return
        known = {record.offset: record for record in wanted}
        for record in found:
            assert record == known.get(record.offset), f"{record} was not committed"
        assert state_of(found) == state_of(wanted)

    def _check_stable_offset(self, log: Log) -> None:
        assert log.last_stable_offset in {
            self.history.last_stable_offset(log.high_watermark, with_deleted=known)
            for known in (True, False)
        }

    def _check_outside(self, log: Log) -> None:
        for offset in (self.start - 1, self.end + 1):
            try:
                log.read(start_offset=offset)
            except OffsetOutOfRange:
                continue
            raise AssertionError(f"offset {offset} was read")

    def _check_times(self, log: Log, found: list[bytes]) -> None:
        records = [
            record
            for data in found
            for record in StoredBatch.of(data).records
            if record.offset >= self.start
        ]
        timestamps = sorted({record.timestamp for record in records})
        some = timestamps[:: len(timestamps) // 4 + 1] + timestamps[-1:]
        for timestamp in [0, *some, *(one + 1 for one in some)]:
            wanted = next((one for one in records if one.timestamp >= timestamp), None)
            answer = log.find_offset_by_time(timestamp)
            assert (answer and (answer.timestamp, answer.offset)) == (
                wanted and (wanted.timestamp, wanted.offset)
            )

    def check_local(self, log: Log, max_bytes: int) -> None:
        """While the object store is down the local part is read as ever."""
        start = max(log.local_start_offset, self.start)
        found = list(read_batches(log, start, Isolation.LOG_END, max_bytes))
        if not self.was_compacted:
            wanted = [b.data for b in self.history.visible() if b.last_offset >= start]
            assert found == wanted


def read_batches(
    log: Log, start_offset: int, isolation: Isolation, max_bytes: int
) -> Iterator[bytes]:
    """Every stored batch from an offset on, as fetches return them."""
    offset = start_offset
    while True:
        fetched = log.read(start_offset=offset, max_bytes=max_bytes, isolation=isolation)
        if not len(fetched.data):
            return
        assert fetched.next_offset > offset
        yield from split_batches(fetched.data)
        offset = fetched.next_offset


def _committed(log: Log, start_offset: int, max_bytes: int) -> Iterator[Record]:
    """What a client makes of read-committed fetches."""
    offset = start_offset
    while True:
        fetched = log.read(
            start_offset=offset, max_bytes=max_bytes, isolation=Isolation.READ_COMMITTED
        )
        if not len(fetched.data):
            return
        for record in filter_committed(split_batches(fetched.data), list(fetched.aborted)):
            if record.offset >= offset:
                yield record
        offset = fetched.next_offset


def state_of(records: Iterable[Record]) -> State:
    """The last value of every key; one whose last record is a tombstone has none."""
    state: State = {}
    for record in records:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = (record.offset, record.value)
    return state
