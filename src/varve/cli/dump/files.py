"""`varve dump`: the files of a partition or log directory as text or JSON.

Layout     docs/reference/formats/producer-snapshot.md, checkpoints.md, directory.md
Invariant  reads only; a broken file is reported and the next one follows.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from varve.cli.dump.indexes import (
    dump_key_index,
    dump_offset_index,
    dump_time_index,
    dump_txn_index,
)
from varve.cli.dump.records import DumpEntry, DumpOptions, DumpSource, dump_data, problem
from varve.cli.dump.text import DumpFormat
from varve.commit_log import names
from varve.commit_log.append_times import decode_append_times
from varve.commit_log.directory_files import (
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    encode_topic_id,
)
from varve.commit_log.offset_checkpoints import INT32_MAX, INT64_MAX, decode_checkpoint
from varve.commit_log.producer_snapshots import decode_producer_snapshot
from varve.commit_log.producer_state import BatchMetadata
from varve.disk import FileSystem
from varve.embedded.topic_table import TOPICS_FILE, decode_topics
from varve.foundation.errors import StoreError

Reader = Callable[[DumpSource, DumpOptions], Iterator[DumpEntry]]

_METADATA_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_BOOTSTRAP_SNAPSHOT: Final = "bootstrap.checkpoint"


def dump_paths(
    fs: FileSystem, paths: Sequence[str], options: DumpOptions, format: DumpFormat
) -> bool:
    """Dump files, and the files of directories; False if one of them is broken."""
    is_whole = True
    for path in paths:
        try:
            files = list(_find_files(fs, path))
        except OSError as error:
            format.write(path, problem(error.strerror or str(error)))
            is_whole = False
            continue
        for file in files:
            is_whole &= _dump_file(fs, file, options, format)
    format.finish()
    return is_whole


def _find_files(fs: FileSystem, path: str) -> Iterator[str]:
    """The path itself, or the files of a directory and of the directories in it."""
    if not fs.info(path).is_directory:
        yield path
        return
    directory = path.rstrip("/") or "/"
    for entry in fs.scan(directory):
        child = f"{directory}/{entry.name}"
        if entry.is_directory:
            yield from (f"{child}/{file.name}" for file in fs.scan(child) if not file.is_directory)
        elif entry.name != names.LOCK_FILE:
            yield child


def measure_paths(fs: FileSystem, paths: Sequence[str]) -> int:
    total = 0
    for path in paths:
        try:
            total += sum(fs.info(file).size for file in _find_files(fs, path) if names.LOG in file)
        except OSError:
            continue  # reported when it is dumped
    return total


def _dump_file(fs: FileSystem, path: str, options: DumpOptions, format: DumpFormat) -> bool:
    plan = _choose_reader(path)
    if plan is None:
        format.skip(path)
        return True
    reader, offset, heading = plan
    is_whole = True
    format.begin(path)
    if heading is not None:
        format.write(path, heading)
    for entry in _read_entries(reader, DumpSource(fs, path, offset), options):
        is_whole &= entry.type != "problem"
        format.write(path, entry)
    return is_whole


def _read_entries(reader: Reader, source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    """The entries of a file; a failure of the file, not of the output, ends it as a problem."""
    try:
        yield from reader(source, options)
    except (StoreError, OSError) as error:
        yield problem(str(error))


def _choose_reader(path: str) -> tuple[Reader, int, DumpEntry | None] | None:
    """The reader of a file by its name, with the offset in it and a heading; None if unknown."""
    name = path.rpartition("/")[2]
    segment = names.parse_file_name(name)
    if segment is not None:
        is_log = segment.kind == names.LOG
        heading = DumpEntry("logStart", {"offset": segment.offset}) if is_log else None
        reader = _READERS_BY_KIND.get(segment.kind)
        return None if reader is None else (reader, segment.offset, heading)
    snapshot = _METADATA_SNAPSHOT.fullmatch(name)
    if snapshot is not None:
        end = {"offset": int(snapshot[1]), "epoch": int(snapshot[2])}
        return dump_data, 0, DumpEntry("snapshotEnd", end)
    if name == _BOOTSTRAP_SNAPSHOT:
        return dump_data, 0, DumpEntry("bootstrapSnapshot", {})
    reader = _READERS_BY_NAME.get(name)
    return None if reader is None else (reader, 0, None)


# Small files


def _dump_snapshot(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    for entry in decode_producer_snapshot(source.fs.read(source.path), source.path):
        first_offset = entry.transaction_first_offset
        fields: dict[str, object] = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": None if first_offset < 0 else first_offset,
            "lastTimestamp": entry.timestamp,
        }
        if entry.last_offset >= 0:
            last = BatchMetadata(
                entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp
            )
            fields |= {
                "firstSequence": last.first_sequence,
                "lastSequence": last.last_sequence,
                "lastOffset": last.last_offset,
                "offsetDelta": last.offset_delta,
                "timestamp": last.timestamp,
            }
        yield DumpEntry("producer", fields)


def _dump_leader_epochs(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    """The lines as they stand, in order or not."""
    for line in decode_checkpoint(source.fs.read(source.path), source.path):
        line.require_fields(2, "epoch start-offset")
        epoch = line.integer(0, at_least=0, at_most=INT32_MAX)
        start_offset = line.integer(1, at_least=0, at_most=INT64_MAX)
        yield DumpEntry("leaderEpoch", {"epoch": epoch, "startOffset": start_offset})


def _dump_offset_checkpoint(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    for line in decode_checkpoint(source.fs.read(source.path), source.path):
        line.require_fields(3, "topic partition offset")
        partition = line.integer(1, at_least=0, at_most=INT32_MAX)
        offset = line.integer(2, at_least=-INT64_MAX - 1, at_most=INT64_MAX)
        fields = {"topic": line.text(0), "partition": partition, "offset": offset}
        yield DumpEntry("checkpoint", fields)


def _dump_partition_metadata(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    topic_id = decode_partition_metadata(source.fs.read(source.path), source.path)
    yield DumpEntry("partitionMetadata", {"version": 0, "topicId": encode_topic_id(topic_id)})


def _dump_directory_metadata(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    owner = decode_meta_properties(source.fs.read(source.path), source.path)
    directory_id = owner.directory_id
    yield DumpEntry(
        "directoryMetadata",
        {
            "version": owner.version,
            "clusterId": owner.cluster_id,
            "nodeId": owner.node_id,
            "directoryId": None if directory_id is None else encode_topic_id(directory_id),
        },
    )


def _dump_topics(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    table = decode_topics(source.fs.read(source.path), source.path)
    for name, topic in sorted(table.topics.items()):
        yield DumpEntry(
            "topic",
            {
                "topic": name,
                "topicId": None if topic.id is None else encode_topic_id(topic.id),
                "partitions": topic.partition_count,
                "state": topic.state.value,
                "settings": dict(topic.settings),
            },
        )


def _dump_append_times(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    """The entries that match their CRC; of a base offset the last one counts."""
    for base_offset, span in decode_append_times(source.fs.read(source.path)):
        fields = {"baseOffset": base_offset, "firstMs": span.first_ms, "lastMs": span.last_ms}
        yield DumpEntry("appendTimes", fields)


def _dump_clean_shutdown(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    epoch = decode_clean_shutdown(source.fs.read(source.path))
    yield DumpEntry("cleanShutdown", {"brokerEpoch": epoch})


_READERS_BY_KIND: Final[dict[str, Reader]] = {
    names.LOG: dump_data,
    names.INDEX: dump_offset_index,
    names.TIME_INDEX: dump_time_index,
    names.TXN_INDEX: dump_txn_index,
    names.SNAPSHOT: _dump_snapshot,
    names.KEYS: dump_key_index,
}
_READERS_BY_NAME: Final[dict[str, Reader]] = {
    names.LEADER_EPOCH_FILE: _dump_leader_epochs,
    names.PARTITION_METADATA_FILE: _dump_partition_metadata,
    names.META_PROPERTIES_FILE: _dump_directory_metadata,
    names.CLEAN_SHUTDOWN_FILE: _dump_clean_shutdown,
    names.RECOVERY_POINT_FILE: _dump_offset_checkpoint,
    names.LOG_START_OFFSET_FILE: _dump_offset_checkpoint,
    names.HIGH_WATERMARK_FILE: _dump_offset_checkpoint,
    names.CLEANER_OFFSET_FILE: _dump_offset_checkpoint,
    TOPICS_FILE: _dump_topics,
    names.APPEND_TIMES_FILE: _dump_append_times,
}
