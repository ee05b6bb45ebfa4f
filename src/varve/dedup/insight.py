"""A look at a deduplication without disturbing it: how far it is, and why a record was dropped.

What a record was found to be is told by the changelog: it has an entry for each record that was
kept, as long as the entry's window is remembered. Whether one was late is told by the times of the
records before it.

Invariant  nothing is written and nobody is fenced. The directory of the ids is only measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from varve.dedup.chunk import make_chunk
from varve.dedup.ends import DedupTopics, Ends
from varve.dedup.id_store import STORE_NAME, Remembered
from varve.dedup.ids import Arrivals, decode_entries, fold_chunk
from varve.dedup.progress import Progress
from varve.dedup.rules import Verdict
from varve.disk import FileSystem
from varve.foundation.errors import NotFound, OffsetOutOfRange
from varve.kernels.window_ids import NO_ID
from varve.records import RecordColumns
from varve.rocks.segments import decode_directory_name

_LOOK_BYTES: Final = 4 << 20
_LOOK_WAIT_MS: Final = 1_000

MakeEnds = Callable[[DedupTopics], Ends]


@dataclass(frozen=True, slots=True)
class StateSize:
    """What the ids of a partition take on disk; `paths` are those of the segments."""

    paths: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionInsight:
    """How far a partition is; `state` is None where its directory is not here."""

    partition: int
    progress: Progress
    end_offset: int
    state: StateSize | None

    @property
    def lag(self) -> int:
        return max(0, self.end_offset - self.progress.position)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a record was found to be; None where nobody remembers it any more.

    `witness` is the record that was kept, for a duplicate.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    verdict: Verdict | None
    witness: Remembered | None
    progress: Progress


class DedupInsight:
    """Looks at the deduplication of a name."""

    def __init__(
        self, make_ends: MakeEnds, name: str, *, state_directory: str, file_system: FileSystem
    ) -> None:
        self._name = name
        self._make_ends = make_ends
        self._state_directory = f"{state_directory}/{name}"
        self._file_system = file_system
        self._ends = make_ends(DedupTopics(input="", output=name, name=name))

    def partitions(self) -> list[PartitionInsight]:
        """Those that have committed something; raises NotFound for a name that nobody used."""
        found = []
        for partition in range(self.partition_count()):
            progress = self._ends.find_progress(partition)
            if progress is not None:
                end = self._source(progress).input_bounds(partition)[1]
                state = self._measure(partition)
                found.append(PartitionInsight(partition, progress, end, state))
        return found

    def close(self) -> None:
        self._ends.close()

    def partition_count(self) -> int:
        """Of all; raises NotFound for a name that nobody used."""
        try:
            return self._ends.partition_count(self._ends.topics.progress)
        except NotFound:
            raise NotFound(
                f"{self._ends.place} knows no deduplication {self._name!r:.200}: it has no topic "
                f"{self._ends.topics.progress}; name its output, or its --name"
            ) from None

    def _source(self, progress: Progress) -> Ends:
        """The ends with the topics that the progress tells."""
        topics = replace(self._ends.topics, input=progress.input, output=progress.output)
        if topics != self._ends.topics:
            self._ends.close()
            self._ends = self._make_ends(topics)
        return self._ends

    def _measure(self, partition: int) -> StateSize | None:
        directory = f"{self._state_directory}/{partition}"
        if not self._file_system.exists(directory):
            return None
        paths, size = [], 0
        for entry in self._file_system.scan(directory):
            if entry.is_directory and decode_directory_name(STORE_NAME, entry.name) is not None:
                path = f"{directory}/{entry.name}"
                paths.append(path)
                size += sum(one.size for one in self._file_system.scan(path))
        return StateSize(tuple(paths), size)

    def explain(self, partition: int, offset: int) -> Explanation:
        """Why a record was kept or dropped; raises OffsetOutOfRange where it cannot be read."""
        if not 0 <= partition < self.partition_count():
            raise NotFound(f"{self._name} has no partition {partition}")
        progress = self._ends.find_progress(partition)
        where = "the input" if progress is None else f"{progress.input}-{partition}"
        if progress is None or offset >= progress.position:
            reached = 0 if progress is None else progress.position
            raise OffsetOutOfRange(
                f"{where}: offset {offset} was not looked at yet, {self._name} is at {reached}"
            )
        columns = self._read(self._source(progress), partition, offset, where)
        arrival = fold_chunk([columns], progress.rules.by, progress.secret_words)
        verdict, witness = self._judge(arrival, partition, progress)
        return Explanation(
            partition,
            offset,
            int(arrival.times[0]),
            columns.key(0),
            verdict,
            witness,
            progress,
        )

    def _read(self, ends: Ends, partition: int, offset: int, where: str) -> RecordColumns:
        start, end = ends.input_bounds(partition)
        if not start <= offset < end:
            raise OffsetOutOfRange(
                f"{where} has offsets {start} to {end - 1}: offset {offset} cannot be read"
            )
        read = ends.read(partition, offset, max_bytes=1, wait_ms=_LOOK_WAIT_MS)
        columns = make_chunk(read.batches, start_offset=offset).columns
        if not len(columns) or int(columns.offsets[0]) != offset:
            raise OffsetOutOfRange(
                f"{where} has no committed record at offset {offset}: it is a marker, was aborted, "
                "or was compacted away"
            )
        return RecordColumns(columns.payload, columns.table[:1])

    def _judge(
        self, arrival: Arrivals, partition: int, progress: Progress
    ) -> tuple[Verdict | None, Remembered | None]:
        if int(arrival.kinds[0]) == NO_ID:
            return Verdict.NO_ID, None
        time, offset = int(arrival.times[0]), int(arrival.offsets[0])
        if time < 0:
            return Verdict.MISSING, None
        if time > progress.stream_time_ms:
            return Verdict.FUTURE, None
        entries, is_whole = self._find_entries(arrival, partition)
        if any(one.offset == offset for one in entries):
            return Verdict.KEPT, None
        if self._is_late(time, offset, partition, progress):
            return Verdict.LATE, None
        low, high = time - progress.rules.before_ms, time + progress.rules.after_ms
        witnesses = [one for one in entries if one.offset < offset and low <= one.time_ms <= high]
        if witnesses:
            return Verdict.DUPLICATE, min(witnesses, key=lambda one: abs(one.time_ms - time))
        if time < progress.whole_from_ms:
            return Verdict.LATE, None
        # It was ahead of its own now, and the stream has come to its time since.
        return (Verdict.FUTURE if is_whole else None), None

    def _is_late(self, time_ms: int, offset: int, partition: int, progress: Progress) -> bool:
        """Whether a record before it was newer by more than the lateness, as headers tell."""
        newest_ms = progress.stream_time_ms
        bound_ms = time_ms + progress.rules.lateness_ms
        position = self._ends.input_bounds(partition)[0]
        while position < offset:
            read = self._ends.read(
                partition, position, max_bytes=_LOOK_BYTES, wait_ms=_LOOK_WAIT_MS
            )
            for one in read.batches:
                header = one.batch.header
                if header.base_offset >= offset or header.max_timestamp <= bound_ms:
                    continue
                columns = one.batch.columns()
                times = columns.timestamps[columns.offsets < offset]
                if ((times > bound_ms) & (times <= newest_ms)).any():
                    return True
            if read.next_offset <= position:
                break
            position = read.next_offset
        return False

    def _find_entries(self, arrival: Arrivals, partition: int) -> tuple[list[Remembered], bool]:
        """What the changelog has of an id, and whether it still has all it was ever told."""
        start = self._ends.changelog_bounds(partition)[0]
        where = f"{self._ends.topics.changelog}-{partition}"
        found = []
        for columns, _ in self._ends.read_changelog(partition, start):
            if not len(columns):
                continue
            entries = decode_entries(columns, where)
            is_same = (entries.words == arrival.words[0]).all(axis=1)
            for place in np.flatnonzero(is_same & (entries.kinds == arrival.kinds[0])).tolist():
                found.append(Remembered(int(entries.times[place]), int(entries.offsets[place])))
        return found, start == 0
