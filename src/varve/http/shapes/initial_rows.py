"""The first rows of a shape's table from a snapshot, or from the files of the broker.

Invariant  a snapshot is rejected if it is of another topic, has records that the log lost, ends
           outside the log, or is older than `delete.retention.ms`. A missing snapshot is waited
           for: only the cluster knows that a topic was deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, NotFound, Unavailable
from varve.jobs.snapshot.store import Snapshot, open_snapshot
from varve.jobs.source.arrow_columns import STANDARD_COLUMNS, ArrowColumns
from varve.jobs.source.options import Mode, SourceFilters, SourceOptions
from varve.jobs.source.plan import plan_tasks
from varve.jobs.source.read import read_task
from varve.jobs.tier.bucket import Bucket
from varve.shapes.feed.decoders import Record
from varve.shapes.feed.order import find_offsets
from varve.shapes.feed.resuming import find_tombstone_retention
from varve.topics import HistoryMark, Position, TopicReader, find_break

_COLUMNS: Final = ("key", "value")


class SnapshotRows:
    """The rows of a snapshot; partitions that were added later start at their first record."""

    def __init__(self, snapshot: Snapshot, reader: TopicReader) -> None:
        """Raises InvalidRequest for a snapshot that does not fit the topic."""
        self.how = f"snapshot {snapshot.url}"
        self.taken_ms: int | None = snapshot.document.taken_ms
        self.resume_offsets: Mapping[int, int] = _resume_offsets(snapshot, reader)
        self._snapshot = snapshot

    def read(self) -> Iterator[Sequence[Record]]:
        with _waiting_for(self._snapshot.url):
            for batch in self._snapshot.batches(columns=_COLUMNS):
                yield _pairs(batch)


class BrokerFileRows:
    """The latest records of a topic, read from the files of a broker on this machine.

    Remote segments are planned by their key indexes before a value is read; in local segments a
    record is decoded only if it is the latest of its key.
    """

    how = "files beside the server"
    taken_ms: int | None = None

    def __init__(
        self,
        reader: TopicReader,
        directories: Sequence[str],
        *,
        address: Bucket | None = None,
    ) -> None:
        """`directories` are the log directories of the broker; `address` is that of its tier."""
        self._topic = reader.topic
        self._directories = tuple(directories)
        self._address = address
        self.resume_offsets: Mapping[int, int] = {
            number: offsets.end for number, offsets in find_offsets(reader).items()
        }

    def read(self) -> Iterator[Sequence[Record]]:
        options = SourceOptions(
            topic=self._topic,
            directories=self._directories,
            address=self._address,
            mode=Mode.LATEST,
            ending=self.resume_offsets,
        )
        names = [name for name in STANDARD_COLUMNS if name in _COLUMNS]
        filters, columns = SourceFilters(), ArrowColumns(names)
        with _waiting_for(", ".join(self._directories)):
            for task in plan_tasks(options, filters):
                for batch in read_task(task, columns, options, filters):
                    yield _pairs(batch)


def open_snapshot_rows(url: str, reader: TopicReader, *, clock: Clock) -> SnapshotRows:
    """The newest snapshot at a URL; raises Unavailable where there is none.

    Raises InvalidRequest for one that does not fit the topic, or is too old.
    """
    with _waiting_for(url):
        snapshot = open_snapshot(url)
    _check_age(snapshot, reader, clock.now_ms())
    return SnapshotRows(snapshot, reader)


@contextmanager
def _waiting_for(source: str) -> Iterator[None]:
    """Raises missing files as Unavailable, so that the caller tries again."""
    try:
        yield
    except (NotFound, FileNotFoundError) as error:
        raise Unavailable(f"the first rows come from {source}: {error}") from error


def _pairs(batch: pa.RecordBatch) -> list[Record]:
    keys, values = (batch.column(name).to_pylist() for name in _COLUMNS)
    return list(zip(keys, values, strict=True))


def _check_age(snapshot: Snapshot, reader: TopicReader, now_ms: int) -> None:
    retention_ms = find_tombstone_retention(reader)
    age_ms = now_ms - snapshot.document.taken_ms
    if retention_ms is not None and age_ms > retention_ms:
        raise InvalidRequest(
            f"the snapshot {snapshot.url} was taken {age_ms} ms ago, and topic {reader.topic} has "
            f"delete.retention.ms={retention_ms}: tombstones may have left the log since; make a "
            "newer snapshot"
        )


def _resume_offsets(snapshot: Snapshot, reader: TopicReader) -> dict[int, int]:
    document = snapshot.document
    if document.topic != reader.topic:
        raise InvalidRequest(
            f"the snapshot {snapshot.url} is of topic {document.topic}, not of {reader.topic}"
        )
    topic_id = reader.info().id_text
    if topic_id and document.topic_id and topic_id != document.topic_id:
        raise InvalidRequest(
            f"the snapshot {snapshot.url} is of topic id {document.topic_id}; topic {reader.topic} "
            f"was deleted and created again and has {topic_id}: make another snapshot"
        )
    resume = {}
    for number, (start, end) in find_offsets(reader).items():
        resume[number] = snapshot.resume_offsets.get(number, start)
        if not start <= resume[number] <= end:
            raise InvalidRequest(
                f"the snapshot {snapshot.url} ends at offset {resume[number]} of partition "
                f"{number}, and the log holds {start} to {end}: make a newer snapshot"
            )
    _check_history(snapshot, reader)
    return resume


def _check_history(snapshot: Snapshot, reader: TopicReader) -> None:
    """Raises InvalidRequest for a snapshot of records that the log lost."""
    for partition in snapshot.document.partitions:
        if partition.mark is None:
            continue
        mark = HistoryMark.from_json(partition.mark.to_json())
        position = Position(partition.resume_offset, mark)
        reason = find_break(reader, partition.partition, position)
        if reason is not None:
            raise InvalidRequest(
                f"the snapshot {snapshot.url} has records that partition {partition.partition} of "
                f"topic {reader.topic} lost: {reason}; make another snapshot"
            )
