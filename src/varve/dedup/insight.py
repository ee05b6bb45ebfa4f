"""Read-only reports of a deduplication: its progress, and why a record was kept or dropped.

The changelog has an entry for each kept record, until its window expires. Whether a record was late
follows from the times of the records before it.

Invariant  nothing is written and no writer is fenced. Of the id directory only sizes are read.
"""

from dataclasses import dataclass

import numpy as np

from varve.dedup.id_store import STORE_NAME, KeptRecord
from varve.dedup.ids import Arrivals, decode_entries, fold_chunk
from varve.dedup.kernels.id_words import NO_ID
from varve.dedup.progress import Progress, find_progress
from varve.dedup.rules import Verdict
from varve.dedup.topics import DedupTopics
from varve.disk import FileSystem
from varve.foundation.errors import NotFound, OffsetOutOfRange
from varve.foundation.units import format_time
from varve.records import RecordColumns
from varve.rocks.segments import decode_directory_name
from varve.topics import Cluster, TopicReader, read_range


@dataclass(frozen=True, slots=True)
class StateSize:
    """The size of a partition's ids on disk; `paths` are those of the segments."""

    paths: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionInsight:
    """The progress of a partition; `state` is None if its directory is not on this machine."""

    partition: int
    progress: Progress
    end_offset: int
    state: StateSize | None

    @property
    def lag(self) -> int:
        return max(0, self.end_offset - self.progress.position)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict on a record; None if it can no longer be determined.

    For a duplicate, `witness` is the record that was kept.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    verdict: Verdict | None
    witness: KeptRecord | None
    progress: Progress

    def describe(self) -> str:
        """One sentence: the verdict on a record, its reason, and where the record went."""
        progress, witness = self.progress, self.witness
        rules = progress.rules
        record = (
            f"{progress.input}-{self.partition}, offset {self.offset}, "
            f"{_format_time(self.timestamp)}"
        )
        routes = {
            "forward": f"copied to {progress.output}",
            "drop": "dropped",
            "side": "written to the side topic",
        }
        # A run before the last commit may have had other policies and another lateness.
        current = "by the current rules"
        match self.verdict:
            case Verdict.KEPT:
                return f"{record}: kept, the first of its id within the window; {routes['forward']}"
            case Verdict.DUPLICATE:
                assert witness is not None
                apart_ms = self.timestamp - witness.time_ms
                limit_ms = rules.before_ms if apart_ms >= 0 else rules.after_ms
                return (
                    f"{record}: a duplicate of offset {witness.offset}, which was kept at "
                    f"{_format_time(witness.time_ms)}; this record is "
                    f"{_format_span(abs(apart_ms))} {'later' if apart_ms >= 0 else 'earlier'}, "
                    f"within {_format_span(limit_ms)}; dropped"
                )
            case Verdict.LATE:
                return (
                    f"{record}: late, more than {_format_span(rules.lateness_ms)} behind the "
                    f"newest record before it, and not compared; {routes[rules.late]} {current}"
                )
            case Verdict.FUTURE:
                return (
                    f"{record}: more than {_format_span(rules.max_future_ms)} in the future when "
                    f"it was read, and not compared; {routes[rules.future]} {current}"
                )
            case Verdict.MISSING:
                return (
                    f"{record}: without a time, and not compared; {routes[rules.missing]} {current}"
                )
            case Verdict.NO_ID:
                return (
                    f"{record}: without an id ({rules.by}), and not compared; {routes[rules.null]} "
                    f"{current}"
                )
            case _:
                return (
                    f"{record}: unknown, because the changelog no longer has its time; it was "
                    "kept, a duplicate, or late"
                )


class DedupInsight:
    """Reports on the deduplication of a name."""

    def __init__(
        self, cluster: Cluster, name: str, *, state_directory: str, file_system: FileSystem
    ) -> None:
        """`close` closes the cluster too."""
        self._name = name
        self._cluster = cluster
        self._topics = DedupTopics(input="", output=name, name=name)
        self._readers: dict[str, TopicReader] = {}
        self._state_directory = f"{state_directory}/{name}"
        self._file_system = file_system

    def partitions(self) -> list[PartitionInsight]:
        """The partitions with committed progress; raises NotFound for an unknown name."""
        insights = []
        for partition in range(self.partition_count()):
            progress = self._find_progress(partition)
            if progress is not None:
                end = self._get_reader(progress.input).offsets(partition).end
                state = self._measure(partition)
                insights.append(PartitionInsight(partition, progress, end, state))
        return insights

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._cluster.close()

    def partition_count(self) -> int:
        """The number of all partitions; raises NotFound for an unknown name."""
        try:
            return self._cluster.describe(self._topics.progress).partition_count
        except NotFound:
            raise NotFound(
                f"{self._cluster.name} has no deduplication {self._name!r:.200}: it has no topic "
                f"{self._topics.progress}; give its output topic, or its --name"
            ) from None

    def _find_progress(self, partition: int) -> Progress | None:
        return find_progress(self._get_reader(self._topics.progress), partition)

    def _get_reader(self, topic: str) -> TopicReader:
        if topic not in self._readers:
            self._readers[topic] = self._cluster.reader(topic)
        return self._readers[topic]

    def _measure(self, partition: int) -> StateSize | None:
        directory = f"{self._state_directory}/{partition}"
        if not self._file_system.exists(directory):
            return None
        paths, size = [], 0
        for entry in self._file_system.scan(directory):
            if entry.is_directory and decode_directory_name(STORE_NAME, entry.name) is not None:
                path = f"{directory}/{entry.name}"
                paths.append(path)
                size += sum(file_info.size for file_info in self._file_system.scan(path))
        return StateSize(tuple(paths), size)

    def explain(self, partition: int, offset: int) -> Explanation:
        """Why a record was kept or dropped; raises OffsetOutOfRange if it cannot be read."""
        if not 0 <= partition < self.partition_count():
            raise NotFound(f"{self._name} has no partition {partition}")
        progress = self._find_progress(partition)
        where = "the input" if progress is None else f"{progress.input}-{partition}"
        if progress is None or offset >= progress.position:
            position = 0 if progress is None else progress.position
            raise OffsetOutOfRange(
                f"{where}: offset {offset} was not processed yet, {self._name} is at {position}"
            )
        columns = self._read(self._get_reader(progress.input), partition, offset, where)
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

    def _read(self, reader: TopicReader, partition: int, offset: int, where: str) -> RecordColumns:
        start, end = reader.offsets(partition)
        if not start <= offset < end:
            raise OffsetOutOfRange(
                f"{where} has offsets {start} to {end - 1}: offset {offset} cannot be read"
            )
        batches = next(read_range(reader, partition, start=offset, end=offset + 1, max_bytes=1))
        columns = next(batches.columns())
        if not len(columns) or int(columns.offsets[0]) != offset:
            raise OffsetOutOfRange(
                f"{where} has no committed record at offset {offset}: it is a marker, was aborted, "
                "or was compacted away"
            )
        return RecordColumns(columns.payload, columns.table[:1])

    def _judge(
        self, arrival: Arrivals, partition: int, progress: Progress
    ) -> tuple[Verdict | None, KeptRecord | None]:
        if int(arrival.kinds[0]) == NO_ID:
            return Verdict.NO_ID, None
        time, offset = int(arrival.times[0]), int(arrival.offsets[0])
        if time < 0:
            return Verdict.MISSING, None
        if time > progress.stream_time_ms:
            return Verdict.FUTURE, None
        entries, is_whole = self._find_entries(arrival, partition)
        if any(remembered.offset == offset for remembered in entries):
            return Verdict.KEPT, None
        if self._is_late(time, offset, partition, progress):
            return Verdict.LATE, None
        low, high = time - progress.rules.before_ms, time + progress.rules.after_ms
        witnesses = [
            remembered
            for remembered in entries
            if remembered.offset < offset and low <= remembered.time_ms <= high
        ]
        if witnesses:
            return Verdict.DUPLICATE, min(
                witnesses, key=lambda remembered: abs(remembered.time_ms - time)
            )
        if time < progress.whole_from_ms:
            return Verdict.LATE, None
        # It was from the future when it was judged; the stream has reached its time since.
        return (Verdict.FUTURE if is_whole else None), None

    def _is_late(self, time_ms: int, offset: int, partition: int, progress: Progress) -> bool:
        """Whether, by batch headers, an earlier record was newer by more than the lateness."""
        newest_ms = progress.stream_time_ms
        bound_ms = time_ms + progress.rules.lateness_ms
        reader = self._get_reader(progress.input)
        start = reader.offsets(partition).start
        for fetched in read_range(reader, partition, start=start, end=offset):
            for batch in fetched:
                header = batch.header
                if header.base_offset >= offset or header.max_timestamp <= bound_ms:
                    continue
                columns = batch.columns()
                times = columns.timestamps[columns.offsets < offset]
                if ((times > bound_ms) & (times <= newest_ms)).any():
                    return True
        return False

    def _find_entries(self, arrival: Arrivals, partition: int) -> tuple[list[KeptRecord], bool]:
        """The changelog entries of an id, and whether the changelog still has all its entries."""
        reader = self._get_reader(self._topics.changelog)
        start, end = reader.offsets(partition)
        where = f"{reader.topic}-{partition}"
        remembered = []
        for fetched in read_range(reader, partition, start=start, end=end):
            for columns in fetched.columns():
                if not len(columns):
                    continue
                entries = decode_entries(columns, where)
                is_same = (entries.words == arrival.words[0]).all(axis=1)
                is_same &= entries.kinds == arrival.kinds[0]
                remembered += [
                    KeptRecord(int(entries.times[index]), int(entries.offsets[index]))
                    for index in np.flatnonzero(is_same).tolist()
                ]
        return remembered, start == 0


def _format_span(span_ms: int) -> str:
    """A duration as options take it: 1h30m."""
    remaining, parts = span_ms, []
    units = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
    for unit, size in units:
        count, remaining = divmod(remaining, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0ms"


def _format_time(time_ms: int) -> str:
    return "-" if time_ms < 0 else format_time(time_ms)
