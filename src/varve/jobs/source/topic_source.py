"""A topic as its readers see it: the bounds and pieces of partitions in one tier or in both.

Invariant  with read_committed no offset at or above an open transaction is planned, and pieces name
           the aborted transactions. The local or served log of a partition is read from the end
           of its remote part on.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
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
    Unavailable,
)
from varve.foundation.topic_records import list_topics
from varve.jobs.source.local_log import (
    LocalPartitionLog,
    find_local_partitions,
    find_local_topics,
)
from varve.jobs.source.options import (
    Mode,
    SourceFilters,
    SourceOptions,
    check_partitions,
    for_partition,
)
from varve.jobs.source.piece_reading import open_batch_ranges, open_objects, piece_filter
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
"""The part of a log that is read from its directory or its server."""


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
        """The object store of its remote pieces."""
        return self._options.address

    @property
    def has_end(self) -> bool:
        """Whether the source reaches the end of the log; the remote tier alone may not."""
        return self._tail is not None

    @property
    def topic(self) -> str:
        return (
            self._tail.owner.topic
            if self._remote is None and self._tail
            else self._remote_path.topic
        )

    @property
    def topic_id(self) -> str:
        return (
            self._tail.topic_id()
            if self._remote is None and self._tail
            else self._remote_path.topic_id
        )

    @property
    def _remote_path(self) -> RemotePath:
        assert self._remote is not None
        return self._remote.remote_path

    def bounds(self) -> tuple[int, int]:
        """The readable offsets, half-open: with read_committed up to the last stable offset."""
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
        """The log end offset, including open transactions."""
        if isinstance(self._tail, ServedPartitionLog):
            return self._tail.log_end_offset
        ends = [part.end_offset for part in (self._remote, self._tail) if part is not None]
        return max(ends, default=0)

    @property
    def manifest_version(self) -> int | None:
        """The version of the remote manifest; None without a remote tier."""
        return None if self._remote is None else self._remote.manifest.version

    @property
    def cleaned_up_to(self) -> int:
        """The offset below which a compaction may have removed tombstones.

        For a partition with a remote part, that is decided by the compaction of the remote tier.
        """
        if self._remote is not None:
            return self._remote.manifest.cleaned_up_to
        return 0 if self._tail is None else self._tail.cleaned_up_to

    def find_range(self, filters: SourceFilters) -> tuple[int, int]:
        """The offsets to read: the bounds, narrowed by options and filters."""
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
        """The first offset of a record with this timestamp or a later one, if any."""
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
        remote_end = 0 if remote is None else remote.end_offset
        aborted = self._aborted(start_offset, end_offset)
        pieces: list[Piece] = []
        if remote is not None and start_offset < remote_end:
            pieces += remote.pieces(
                start_offset=start_offset,
                end_offset=min(end_offset, remote_end),
                min_ms=filters.min_ms,
                is_keyed=self._is_keyed(filters),
                aborted=aborted,
            )
        if tail is not None and end_offset > remote_end:
            self._check_no_gap(tail, max(start_offset, remote_end))
            pieces += tail.pieces(
                start_offset=max(start_offset, remote_end),
                end_offset=end_offset,
                min_ms=filters.min_ms,
                split_bytes=self._options.split_bytes,
                aborted=aborted,
            )
        return pieces

    def step(self, *, start_offset: int, end_offset: int, max_bytes: int) -> int:
        """The end offset of a read of about `max_bytes`, at least `start_offset + 1`."""
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
        """The mark of the batch before an offset; None if it cannot be read."""
        header = self._find_batch_before(next_offset)
        return None if header is None else HistoryMark.of(header)

    def find_break(self, next_offset: int, mark: HistoryMark | None) -> str | None:
        """Why the log differs from the one that was read up to an offset; None if it may not.

        Without a mark, or if its batch was removed from the log, nothing can be compared.
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
                for batch_range in open_batch_ranges(piece, piece_filter(piece), objects, stack)
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
        """Whether the read can use key indexes, which do not list aborted records."""
        is_by_key = filters.keys is not None or self._options.mode is Mode.LATEST
        return is_by_key and self._options.is_committed

    def _check_no_gap(self, tail: Tail, offset: int) -> None:
        first = tail.first_offset
        if first > offset:
            if self._remote is not None and not self._remote.is_newest():
                raise Unavailable(
                    f"{self.topic}-{self.number}: segments left the local disk while the read was "
                    "planned; read again"
                )
            raise Corrupt(
                f"{self.topic}-{self.number}: offsets {offset} to {first - 1} are neither in the "
                f"remote tier nor in {tail.directory}; `varve tier fsck` shows details. To skip "
                f"them read from {first} with startingOffset"
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


def keeps_tombstones(
    offset: int,
    *,
    bounds: tuple[int, int],
    cleaned_before: int,
    cleaned_up_to: int,
    is_same_tier: bool,
) -> bool:
    """Whether no tombstone from an offset on, where a reader stopped, has left the log unread.

    Compaction removes tombstones only below `cleaned_up_to`. `delete.retention.ms` is not
    considered: a compaction may have run with another value than the topic has now. If
    `cleaned_up_to` has decreased since the reader stopped, its record was lost.

    A reader that stopped at or below the log start needs none: it reads the whole log, and its
    rows are all of expired records. One that stopped at the end has read all of them.
    """
    start_offset, end_offset = bounds
    if offset <= start_offset or offset >= end_offset:
        return True
    return is_same_tier and cleaned_before <= cleaned_up_to <= offset


def open_partitions(
    options: SourceOptions, only: frozenset[int] | None = None
) -> list[PartitionSource]:
    """Opens the requested partitions of the topic, or all, in order."""
    return TopicSource(options).partitions(only)


class TopicSource:
    """A topic that readers list repeatedly, as a stream does for each micro-batch.

    The cost of listing it again depends neither on the other topics of the store nor on the length
    of the log: the topic is looked up once, and the walk over a local log continues at its end.
    """

    def __init__(self, options: SourceOptions) -> None:
        has_tail = bool(options.directories) or options.server is not None
        if has_tail and (options.version is not None or options.as_of_ms is not None):
            raise InvalidRequest(
                "options version and asOf read the remote tier alone: leave out directory and "
                "bootstrap.servers"
            )
        self._options = options
        self._has_tail = has_tail
        self._remote: RemoteTopic | None = None
        self._logs: dict[int, LocalPartitionLog] = {}
        self._checked_state: tuple[Sequence[int], Sequence[FileInfo]] | None = None

    def partitions(self, only: frozenset[int] | None = None) -> list[PartitionSource]:
        """The requested partitions, or all, in order, in their current state."""
        server = self._options.server
        return (
            self._list_partitions(only)
            if server is None
            else self._list_served_partitions(server, only)
        )

    def _list_partitions(self, only: frozenset[int] | None) -> list[PartitionSource]:
        options = self._options
        topic = self._remote = self._find_remote(options.topic)
        name = options.topic if topic is None else topic.name
        remote_paths = {} if topic is None else {path.partition: path for path in topic.partitions}
        directories = find_local_partitions(options.directories, name)
        numbers = sorted({*remote_paths, *directories})
        if not numbers:
            where = ", ".join(options.directories) or "the remote tier"
            known = list_topics(options.topic, find_local_topics(options.directories))
            raise NotFound(f"there is no topic {options.topic!r:.260} in {where}{known}")
        self._check_all_directories(name, numbers, only)
        check_partitions(name, options.named_partitions, numbers)
        check_versions(options, numbers)
        sources = []
        for number in numbers:
            if only is not None and number not in only:
                continue
            # The local log first: segments deleted from it later are in the manifest read after it.
            log = self._refresh_log(number, directories.get(number), name)
            if log is not None:
                _check_topic(log, topic)
            remote = None
            if number in remote_paths and options.address is not None:
                remote = RemotePartitionLog(options.address, remote_paths[number], options)
            sources.append(PartitionSource(number, remote, log, options))
        return sources

    def _refresh_log(
        self, number: int, directory: str | None, name: str
    ) -> LocalPartitionLog | None:
        if directory is None:
            return None
        log = self._logs.get(number)
        if log is not None and log.directory == directory:
            # The reader itself compares the topic with the one that it began with.
            with suppress(InconsistentTopicId):
                self._logs[number] = log.refresh()
                return self._logs[number]
        self._logs[number] = LocalPartitionLog(directory, TopicPartition(name, number))
        return self._logs[number]

    def _list_served_partitions(
        self, address: ClusterAddress, only: frozenset[int] | None
    ) -> list[PartitionSource]:
        """The partitions of a server; offsets in the remote tier are read from its object store."""
        options = self._options
        client = open_client(address)
        served = client.topic(options.topic)
        check_partitions(served.name, options.named_partitions, served.leaders)
        remote_paths = {}
        if options.address is not None:
            cluster_id = options.address.cluster or served.cluster_id
            cluster = cluster_id or find_cluster(options.address)
            topic = read_topic(options.address, cluster, served.name, encode_topic_id(served.id))
            remote_paths = {path.partition: path for path in topic.partitions}
        sources = []
        for number in sorted(served.leaders):
            if only is not None and number not in only:
                continue
            remote = None
            if number in remote_paths and options.address is not None:
                remote = RemotePartitionLog(options.address, remote_paths[number], options)
            # The remote part first, so that the end of the server is not below its end.
            tail = ServedPartitionLog(
                client, served, number, remote=remote, is_committed=options.is_committed
            )
            sources.append(PartitionSource(number, remote, tail, options))
        return sources

    def _find_remote(self, name: str) -> RemoteTopic | None:
        """The topic in the remote tier; with a directory or server, None if it is not there yet."""
        address, previous = self._options.address, self._remote
        if address is None:
            return None
        if previous is not None:
            return read_topic(address, previous.cluster, previous.name, previous.topic_id)
        if self._has_tail and not address.objects().list_directories(""):
            return None
        try:
            return find_topic(address, name)
        except NotFound:
            if self._has_tail:
                return None
            raise

    def _check_all_directories(
        self, name: str, numbers: Sequence[int], only: frozenset[int] | None
    ) -> None:
        """Raises InvalidRequest if requested partitions are in directories that are not given."""
        fs, directories = RealFileSystem(), self._options.directories
        paths = [f"{directory}/{TOPICS_FILE}" for directory in directories]
        paths = [path for path in paths if fs.exists(path)]
        state = numbers, [fs.info(path) for path in paths]
        if state == self._checked_state:
            return
        for path in paths:
            entry = decode_topics(fs.read(path), path).topics.get(name)
            numbers_in_table = set(range(0 if entry is None else entry.partition_count))
            requested = numbers_in_table if only is None else numbers_in_table & only
            missing = requested - {*numbers}
            if missing:
                listed = ", ".join(map(str, sorted(missing)))
                raise InvalidRequest(
                    f"partitions {listed:.200} of {name} are not in {', '.join(directories)}: the "
                    "store has other directories, and a read without them would be incomplete. "
                    "Give them too, or copy the topic to the remote tier"
                )
        self._checked_state = state


def _check_topic(log: LocalPartitionLog, topic: RemoteTopic | None) -> None:
    if topic is not None and log.topic_id() != topic.topic_id:
        raise InconsistentTopicId(
            f"{log.directory} has topic id {log.topic_id()}, the remote tier has {topic.name} with "
            f"id {topic.topic_id}: read one of the two"
        )
