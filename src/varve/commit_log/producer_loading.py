"""Brings producer state up to an offset.

The newest usable snapshot, then a replay of the batches behind it.

Layout     `<offset>.snapshot` holds the state up to but excluding the offset.
           docs/formats/producer-snapshot.md
Crash      snapshots are hints: a damaged one is removed and an older one, or the whole log, serves.
"""

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from varve.commit_log.names import DELETED, LOG, SNAPSHOT, log_name
from varve.commit_log.producer_replay import replay_batches
from varve.commit_log.producer_state import ProducerStates
from varve.commit_log.segment_reader import (
    BatchTable,
    BatchWalk,
    ReadableSegment,
    find_batch_position,
)
from varve.commit_log.settings import LONG_MAX
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn

logger = logging.getLogger(__name__)


class ProducerSnapshots:
    """The snapshot files of one partition directory."""

    def __init__(self, fs: FileSystem, directory: str, offsets: Iterable[int]) -> None:
        self._fs = fs
        self._directory = directory
        self.offsets = sorted(offsets)
        self._unsynced: list[int] = []
        self.has_removed = False

    def path(self, offset: int) -> str:
        return f"{self._directory}/{log_name(offset, SNAPSHOT)}"

    @property
    def latest(self) -> int:
        return self.offsets[-1] if self.offsets else -1

    def write(self, producers: ProducerStates) -> None:
        """Writes the state at its map end, unless a snapshot as new is there."""
        offset = producers.map_end_offset
        # At offset 0 there is nothing to know, and Kafka writes none.
        if offset <= max(self.latest, 0):
            return
        data = producers.encode_snapshot()
        with self._fs.open_writable(self.path(offset)) as file:
            file.write_at(0, data)
            file.truncate(len(data))
        self.offsets.append(offset)
        self._unsynced.append(offset)

    def read(self, offset: int) -> bytes:
        return self._fs.read(self.path(offset))

    def distrust_from(self, offset: int) -> None:
        """A process before this one may have ended before it brought these to the disk."""
        self._unsynced = [one for one in self.offsets if one >= offset]

    def take_unsynced(self) -> list[int]:
        """The offsets of snapshots written since the last call; the caller syncs them."""
        unsynced, self._unsynced = self._unsynced, []
        return unsynced

    def sync(self, offset: int) -> bool:
        """False if the file has vanished: an older one and the batches behind it serve."""
        try:
            with self._fs.open(self.path(offset)) as file:
                file.sync()
        except FileNotFoundError:
            return False
        return True

    def remove(self, offset: int) -> None:
        self.forget(offset)
        self.has_removed = True
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(self.path(offset))

    def set_aside(self, offset: int) -> None:
        """Renames it `.deleted`; the caller removes it later, as the rest of its segment."""
        self.forget(offset)
        with contextlib.suppress(FileNotFoundError):
            self._fs.rename(self.path(offset), self.path(offset) + DELETED)

    def forget(self, offset: int) -> None:
        """Passes over the snapshot from now on."""
        if offset in self.offsets:
            self.offsets.remove(offset)
        if offset in self._unsynced:
            self._unsynced.remove(offset)

    def remove_stray(self, base_offsets: Sequence[int]) -> None:
        """Removes those that name no segment.

        But for the largest if it is not below the largest base.
        """
        bases = set(base_offsets)
        stray = [offset for offset in self.offsets if offset not in bases]
        if stray and base_offsets and stray[-1] >= base_offsets[-1]:
            stray.pop()
        for offset in stray:
            self.remove(offset)

    def load_newest(
        self, producers: ProducerStates, *, now_ms: int, expiration_ms: int
    ) -> int | None:
        """Loads the newest snapshot that can be read and gives its offset.

        Damaged ones are removed.
        """
        while self.offsets:
            path = self.path(self.latest)
            try:
                producers.load_snapshot(
                    self._fs.read(path), now_ms=now_ms, expiration_ms=expiration_ms, where=path
                )
            except (Corrupt, FileNotFoundError) as error:
                logger.warning(
                    "removed a damaged snapshot", extra={"path": path, "error": str(error)}
                )
                producers.clear()
                self.remove(self.latest)
                continue
            return self.latest
        return None


@dataclass(frozen=True, slots=True)
class ProducerLoad:
    """What loading producer state depends on besides the log itself."""

    log_start_offset: int
    now_ms: int
    expiration_ms: int
    clean: bool = False
    where: str = "log"


def load_producers(
    snapshots: ProducerSnapshots,
    segments: Sequence[ReadableSegment],
    *,
    end_offset: int,
    load: ProducerLoad,
) -> ProducerStates:
    """Producer state up to `end_offset`, with the snapshots a loaded log should have."""
    producers = ProducerStates(load.where)
    last_bases = [segment.base_offset for segment in segments[-2:]]
    if load.clean and not snapshots.offsets:
        for offset in [*last_bases, end_offset]:
            producers.map_end_offset = offset
            snapshots.write(producers)
        return producers
    for offset in [o for o in snapshots.offsets if o > end_offset or o <= load.log_start_offset]:
        snapshots.remove(offset)
    newest = snapshots.load_newest(producers, now_ms=load.now_ms, expiration_ms=load.expiration_ms)
    map_end = load.log_start_offset if newest is None else newest
    for number, segment in enumerate(segments):
        upper = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        if upper <= map_end or segment.base_offset >= end_offset:
            continue
        start = max(segment.base_offset, map_end)
        if segment.base_offset in last_bases and segment.base_offset >= map_end:
            producers.map_end_offset = segment.base_offset
            snapshots.write(producers)
        _replay_segment(segment, producers, start=start, end=end_offset)
    producers.map_end_offset = end_offset
    if end_offset > map_end:
        snapshots.write(producers)
    return producers


def read_snapshot(
    snapshots: ProducerSnapshots, segments: Sequence[ReadableSegment], *, offset: int
) -> bytes:
    """The bytes of the snapshot at an offset, made anew where the file is missing or damaged.

    Writes and removes nothing. `segments` are those in front of the offset, and may be more.
    """
    producers = ProducerStates()
    start = 0
    for at in reversed([one for one in snapshots.offsets if one <= offset]):
        path = snapshots.path(at)
        try:
            data = snapshots.read(at)
            producers.load_snapshot(data, now_ms=0, expiration_ms=LONG_MAX, where=path)
        except (Corrupt, FileNotFoundError):
            producers.clear()
            continue
        if at == offset:
            return data
        start = at
        break
    ends = [one.base_offset for one in segments[1:]] + [offset]
    for segment, end in zip(segments, ends, strict=False):
        if end > start and segment.base_offset < offset:
            first = max(segment.base_offset, start)
            _replay_segment(segment, producers, start=first, end=offset)
    producers.map_end_offset = offset
    return producers.encode_snapshot()


def _replay_segment(
    segment: ReadableSegment, producers: ProducerStates, *, start: int, end: int
) -> None:
    found = find_batch_position(segment, start, size=segment.size)
    if found is None:
        return
    path = segment.path(LOG)
    walk = BatchWalk(segment.file(), start=found[0], end=segment.size, verify_crc=False)
    for table in walk:
        inside = int((table.rows[:, BatchColumn.BASE_OFFSET] < end).sum())
        rows = table.rows[:inside]
        replay_batches(
            BatchTable(rows, table.buffer, table.start, table.end), producers, None, where=path
        )
        if inside < len(table.rows):
            return
    walk.check_ended(path)
