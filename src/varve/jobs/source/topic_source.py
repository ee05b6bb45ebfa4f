"""A topic for its readers: its partitions, in one tier or in both, their bounds and their pieces.

Invariant  with read_committed nothing at or above an undecided transaction is planned, and what an
           aborted one wrote is named to the tasks. A partition's local log is read after the end
           of its cold one, and so is that of a server.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import TopicPartition
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import FileInfo, RealFileSystem
from varve.embedded.topic_table import TOPICS_FILE, decode_topics
from varve.foundation.errors import (
    Corrupt,
    InconsistentTopicId,
    InvalidRequest,
    NotFound,
)
from varve.jobs.source.local_log import LocalPartitionLog, find_local_partitions
from varve.jobs.source.options import Mode, SourceFilters, SourceOptions, for_partition
from varve.jobs.source.piece_reading import filter_of, open_batch_ranges, open_objects
from varve.jobs.source.pieces import Piece, step_by_bytes
from varve.jobs.source.record_blocks import read_batches
from varve.jobs.source.remote_plan import RemotePartitionLog, check_versions
from varve.jobs.source.server_log import ServedPartitionLog
from varve.jobs.tier.bucket import Bucket, RemoteTopic, find_cluster, find_topic, read_topic
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.client import open_client
from varve.kernels.batch_layout import BatchColumn
from varve.records import BatchHeader, decode_header
from varve.tiering.manifest.paths import RemotePath
from varve.topics import HistoryMark

Tail = LocalPartitionLog | ServedPartitionLog
"""The part of a log that is read where it is written."""


class PartitionSource:
    """One partition in one tier or in both."""

    def __init__(
        self,
        number: int,
        remote: RemotePartitionLog | None,
        tail: Tail | None,
        options: SourceOptions,
    ) -> None:
        self.number = number
        self._remote = remote
        self._tail = tail
        self._options = options

    @property
    def requests(self) -> int:
        return 0 if self._remote is None else self._remote.requests

    @property
    def address(self) -> Bucket | None:
        """Where its cold pieces are read."""
        return self._options.address

    @property
    def has_end(self) -> bool:
        """Whether the end of the log is here; the cold tier alone may end before it."""
        return self._tail is not None

    @property
    def topic(self) -> str:
        return self._tail.owner.topic if self._remote is None and self._tail else self._home.topic

    @property
    def topic_id(self) -> str:
        return self._tail.topic_id() if self._remote is None and self._tail else self._home.topic_id

    @property
    def _home(self) -> RemotePath:
        assert self._remote is not None
        return self._remote.home

    def bounds(self) -> tuple[int, int]:
        """The first offset that can be read, and the one after the last."""
        remote, tail, is_committed = self._remote, self._tail, self._options.is_committed
        if tail is not None and (
            remote is None or tail.is_whole or tail.end_offset > remote.end_offset
        ):
            end = tail.stable_offset if is_committed else tail.end_offset
        else:
            assert remote is not None
            end = remote.stable_offset if is_committed else remote.end_offset
        if remote is None or remote.manifest.highest_offset < 0:
            start = end if tail is None else tail.start_offset
        else:
            start = remote.start_offset
            if tail is not None and (tail.is_whole or tail.start_offset > tail.first_offset):
                start = max(start, tail.start_offset)
        return min(start, end), end

    @property
    def end_offset(self) -> int:
        """The offset after the last record that is here, decided or not."""
        if isinstance(self._tail, ServedPartitionLog):
            return self._tail.log_end_offset
        ends = [part.end_offset for part in (self._remote, self._tail) if part is not None]
        return max(ends, default=0)

    @property
    def manifest_version(self) -> int | None:
        """That of the cold tier; None where there is none."""
        return None if self._remote is None else self._remote.manifest.version

    @property
    def cleaned_up_to(self) -> int:
        """Below it a compaction may have removed tombstones for good.

        Of a partition in the cold tier they stay everywhere until they were cleaned there.
        """
        if self._remote is not None:
            return self._remote.manifest.cleaned_up_to
        return 0 if self._tail is None else self._tail.cleaned_up_to

    def wanted(self, filters: SourceFilters) -> tuple[int, int]:
        """The bounds narrowed by options and filters."""
        options = self._options
        start, end = self.bounds()
        first, last = start, end
        starting = for_partition(options.starting, self.number)
        ending = for_partition(options.ending, self.number)
        if options.starting_ms is not None:
            offset = self.find_by_time(options.starting_ms, start)
            start = end if offset is None else max(start, offset)
        if options.ending_ms is not None:
            offset = self.find_by_time(options.ending_ms, first)
            end = end if offset is None else min(end, offset)
        start = max(start, min(starting or 0, last), filters.start_offset)
        end = min(end, last if ending is None else ending, filters.end_offset)
        return start, max(start, end)

    def find_by_time(self, timestamp: int, start_offset: int) -> int | None:
        """The first offset of a record of this time or later; None when there is none."""
        offset, tail = None, self._tail
        if self._remote is not None and not (tail is not None and tail.is_whole):
            offset = self._remote.find_by_time(timestamp, start_offset=start_offset)
        if offset is None and tail is not None:
            offset = tail.find_by_time(timestamp, start_offset=start_offset)
        return offset

    def pieces(self, *, start_offset: int, end_offset: int, filters: SourceFilters) -> list[Piece]:
        if start_offset >= end_offset:
            return []
        remote, tail = self._remote, self._tail
        border = 0 if remote is None else remote.end_offset
        aborted = self._aborted(start_offset, end_offset)
        pieces: list[Piece] = []
        if remote is not None and start_offset < border:
            pieces += remote.pieces(
                start_offset=start_offset,
                end_offset=min(end_offset, border),
                min_ms=filters.min_ms,
                is_keyed=self._is_keyed(filters),
                aborted=aborted,
            )
        if tail is not None and end_offset > border:
            self._check_joined(tail, max(start_offset, border))
            pieces += tail.pieces(
                start_offset=max(start_offset, border),
                end_offset=end_offset,
                min_ms=filters.min_ms,
                split_bytes=self._options.split_bytes,
                aborted=aborted,
            )
        return pieces

    def step(self, *, start_offset: int, end_offset: int, max_bytes: int) -> int:
        """The end offset of a read of about this many bytes, at least one offset on."""
        remote = self._remote
        part: RemotePartitionLog | Tail | None = self._tail
        if remote is not None and start_offset < remote.end_offset:
            part, end = remote, min(remote.end_offset, end_offset)
        else:
            end = end_offset
        if part is None:
            return end_offset
        offset = step_by_bytes(
            part.segment_sizes(start_offset, end),
            start_offset=start_offset,
            end_offset=end,
            max_bytes=max_bytes,
        )
        return min(max(offset, start_offset + 1), end_offset)

    # The history before an offset

    def find_mark(self, next_offset: int) -> HistoryMark | None:
        """The mark of what lies before an offset; None where no batch is there to be read."""
        header = self._find_batch_before(next_offset)
        return None if header is None else HistoryMark.of(header)

    def find_break(self, next_offset: int, mark: HistoryMark | None) -> str | None:
        """Why the log is not the one that was read up to an offset; None if it may be.

        Without a mark, or where its batch has left the log, nothing can be compared.
        """
        end_offset = self.bounds()[1]
        if self.has_end and end_offset < next_offset:
            return f"the log ends at offset {end_offset}, and was read up to {next_offset} before"
        header = None if mark is None else self._find_batch_before(next_offset)
        if mark is None or header is None:
            return None
        difference = mark.find_break(header)
        return None if difference is None else f"in front of offset {next_offset} {difference}"

    def _find_batch_before(self, next_offset: int) -> BatchHeader | None:
        """The batch that holds the offset before this one."""
        offset = next_offset - 1
        start_offset, end_offset = self.bounds()
        if not start_offset <= offset < end_offset:
            return None
        if isinstance(self._tail, ServedPartitionLog):
            return self._tail.find_batch_before(next_offset)
        pieces = self.pieces(start_offset=offset, end_offset=next_offset, filters=SourceFilters())
        objects = partial(open_objects, self.address)
        with ExitStack() as stack:
            batch_ranges = [
                batch_range
                for piece in pieces
                for batch_range in open_batch_ranges(piece, filter_of(piece), objects, stack)
            ]
            for buffer, rows, _ in read_batches(batch_ranges):
                holds = (rows[:, BatchColumn.BASE_OFFSET] <= offset) & (
                    rows[:, BatchColumn.LAST_OFFSET] >= offset
                )
                if holds.any():
                    position = int(rows[int(np.argmax(holds)), BatchColumn.POSITION])
                    return decode_header(buffer.data, position)
        return None

    def _is_keyed(self, filters: SourceFilters) -> bool:
        """Whether key indexes suffice for a segment; they do not list aborted records."""
        is_asked = filters.keys is not None or self._options.mode is Mode.LATEST
        return is_asked and self._options.is_committed

    def _check_joined(self, tail: Tail, offset: int) -> None:
        first = tail.first_offset
        if first > offset:
            raise Corrupt(
                f"{self.topic}-{self.number}: offsets {offset} to {first - 1} are neither in the "
                f"cold tier nor in {tail.directory}; `varve tier fsck` shows more. Read on from "
                f"{first} with startingOffset"
            )

    def _aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        if not self._options.is_committed:
            return []
        aborted: dict[AbortedTransaction, None] = {}
        if self._remote is not None:
            aborted.update(dict.fromkeys(self._remote.aborted(start_offset, end_offset)))
        if self._tail is not None:
            aborted.update(dict.fromkeys(self._tail.aborted(start_offset, end_offset)))
        return list(aborted)


def open_partitions(
    options: SourceOptions, wanted: frozenset[int] | None = None
) -> list[PartitionSource]:
    """The partitions of the topic that are wanted, in order."""
    return TopicSource(options).partitions(wanted)


class TopicSource:
    """A topic by the options of its readers, who may look at it again and again.

    What a further look costs depends neither on the other topics of the store nor on the length of
    the log: the topic is looked up once, and a local log is walked on from where it ended before.
    """

    def __init__(self, options: SourceOptions) -> None:
        has_tail = bool(options.directories) or options.server is not None
        if has_tail and (options.version is not None or options.as_of_ms is not None):
            raise InvalidRequest(
                "an older manifest (version, asOf) is read without a directory or a server"
            )
        self._options = options
        self._has_tail = has_tail
        self._remote: RemoteTopic | None = None
        self._logs: dict[int, LocalPartitionLog] = {}
        self._complete: tuple[Sequence[int], Sequence[FileInfo]] | None = None

    def partitions(self, wanted: frozenset[int] | None = None) -> list[PartitionSource]:
        """The partitions that are wanted, in order, as they are now."""
        server = self._options.server
        return (
            self._list_partitions(wanted)
            if server is None
            else self._list_served_partitions(server, wanted)
        )

    def _list_partitions(self, wanted: frozenset[int] | None) -> list[PartitionSource]:
        options = self._options
        topic = self._remote = self._find_remote(options.topic)
        name = options.topic if topic is None else topic.name
        homes = {} if topic is None else {home.partition: home for home in topic.partitions}
        directories = find_local_partitions(options.directories, name)
        numbers = sorted({*homes, *directories})
        if not numbers:
            where = ", ".join(options.directories) or "the cold tier"
            raise NotFound(f"there is no topic {options.topic!r:.260} in {where}")
        self._check_complete(name, numbers, wanted)
        check_versions(options, numbers)
        sources = []
        for number in numbers:
            if wanted is not None and number not in wanted:
                continue
            # The local log first: what leaves it afterwards, the newest manifest has.
            log = self._refresh_log(number, directories.get(number), name)
            if log is not None:
                _check_topic(log, topic)
            remote = None
            if number in homes and options.address is not None:
                remote = RemotePartitionLog(options.address, homes[number], options)
            sources.append(PartitionSource(number, remote, log, options))
        return sources

    def _refresh_log(
        self, number: int, directory: str | None, name: str
    ) -> LocalPartitionLog | None:
        if directory is None:
            return None
        log = self._logs.get(number)
        if log is None or log.directory != directory:
            log = LocalPartitionLog(directory, TopicPartition(name, number))
        else:
            log = log.refresh()
        self._logs[number] = log
        return log

    def _list_served_partitions(
        self, address: ClusterAddress, wanted: frozenset[int] | None
    ) -> list[PartitionSource]:
        """The partitions as a server has them; what is in the cold tier is read there."""
        options = self._options
        client = open_client(address)
        served = client.topic(options.topic)
        homes = {}
        if options.address is not None:
            known = options.address.cluster or served.cluster_id
            cluster = known or find_cluster(options.address)
            topic = read_topic(options.address, cluster, served.name, encode_topic_id(served.id))
            homes = {home.partition: home for home in topic.partitions}
        sources = []
        for number in sorted(served.leaders):
            if wanted is not None and number not in wanted:
                continue
            remote = None
            if number in homes and options.address is not None:
                remote = RemotePartitionLog(options.address, homes[number], options)
            # The cold part first, so that the server's end is not before its own.
            tail = ServedPartitionLog(
                client, served, number, remote=remote, is_committed=options.is_committed
            )
            sources.append(PartitionSource(number, remote, tail, options))
        return sources

    def _find_remote(self, name: str) -> RemoteTopic | None:
        """The topic in the cold tier; with a directory, none may be there yet."""
        address, known = self._options.address, self._remote
        if address is None:
            return None
        if known is not None:
            return read_topic(address, known.cluster, known.name, known.topic_id)
        if self._has_tail and not address.objects().list_directories(""):
            return None
        try:
            return find_topic(address, name)
        except NotFound:
            if self._has_tail:
                return None
            raise

    def _check_complete(
        self, name: str, numbers: Sequence[int], wanted: frozenset[int] | None
    ) -> None:
        """Raises InvalidRequest where a directory knows of wanted partitions that lie elsewhere."""
        fs, directories = RealFileSystem(), self._options.directories
        paths = [f"{directory}/{TOPICS_FILE}" for directory in directories]
        paths = [path for path in paths if fs.exists(path)]
        state = numbers, [fs.info(path) for path in paths]
        if state == self._complete:
            return
        for path in paths:
            entry = decode_topics(fs.read(path), path).topics.get(name)
            known = set(range(0 if entry is None else entry.partition_count))
            lacking = (known if wanted is None else known & wanted) - {*numbers}
            if lacking:
                listed = ", ".join(map(str, sorted(lacking)))
                raise InvalidRequest(
                    f"partitions {listed:.200} of {name} are not in {', '.join(directories)}: the "
                    "store has other directories, and without them a part of the topic would be "
                    "taken for all of it. Give them too, or put the topic into the cold tier"
                )
        self._complete = state


def _check_topic(log: LocalPartitionLog, topic: RemoteTopic | None) -> None:
    if topic is not None and log.topic_id() != topic.topic_id:
        raise InconsistentTopicId(
            f"{log.directory} is of a topic with id {log.topic_id()}, the cold tier holds "
            f"{topic.name} with id {topic.topic_id}: leave out one of the two"
        )
