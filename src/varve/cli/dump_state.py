"""Dumps the small files: producer snapshots, leader epochs, checkpoints, metadata, topics.

Layout     docs/formats/producer-snapshot.md, checkpoints.md, directory.md
"""

from collections.abc import Iterator

from varve.cli.dump_entry import DumpOptions, Entry, Source
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
from varve.embedded.topic_table import decode_topics


def dump_snapshot(source: Source, options: DumpOptions) -> Iterator[Entry]:
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
        yield Entry("producer", fields)


def dump_leader_epochs(source: Source, options: DumpOptions) -> Iterator[Entry]:
    """The lines as they stand, in order or not."""
    for line in decode_checkpoint(source.fs.read(source.path), source.path):
        line.require_fields(2, "epoch start-offset")
        epoch = line.integer(0, at_least=0, at_most=INT32_MAX)
        start_offset = line.integer(1, at_least=0, at_most=INT64_MAX)
        yield Entry("leaderEpoch", {"epoch": epoch, "startOffset": start_offset})


def dump_offset_checkpoint(source: Source, options: DumpOptions) -> Iterator[Entry]:
    for line in decode_checkpoint(source.fs.read(source.path), source.path):
        line.require_fields(3, "topic partition offset")
        partition = line.integer(1, at_least=0, at_most=INT32_MAX)
        offset = line.integer(2, at_least=-INT64_MAX - 1, at_most=INT64_MAX)
        fields = {"topic": line.text(0), "partition": partition, "offset": offset}
        yield Entry("checkpoint", fields)


def dump_partition_metadata(source: Source, options: DumpOptions) -> Iterator[Entry]:
    topic_id = decode_partition_metadata(source.fs.read(source.path), source.path)
    yield Entry("partitionMetadata", {"version": 0, "topicId": encode_topic_id(topic_id)})


def dump_directory_metadata(source: Source, options: DumpOptions) -> Iterator[Entry]:
    owner = decode_meta_properties(source.fs.read(source.path), source.path)
    directory_id = owner.directory_id
    yield Entry(
        "directoryMetadata",
        {
            "version": owner.version,
            "clusterId": owner.cluster_id,
            "nodeId": owner.node_id,
            "directoryId": None if directory_id is None else encode_topic_id(directory_id),
        },
    )


def dump_topics(source: Source, options: DumpOptions) -> Iterator[Entry]:
    table = decode_topics(source.fs.read(source.path), source.path)
    for name, topic in sorted(table.topics.items()):
        yield Entry(
            "topic",
            {
                "topic": name,
                "topicId": None if topic.id is None else encode_topic_id(topic.id),
                "partitions": topic.partition_count,
                "state": topic.state.value,
                "settings": dict(topic.settings),
            },
        )


def dump_append_times(source: Source, options: DumpOptions) -> Iterator[Entry]:
    """The entries that match their CRC; of a base offset the last one counts."""
    for base_offset, span in decode_append_times(source.fs.read(source.path)):
        fields = {"baseOffset": base_offset, "firstMs": span.first_ms, "lastMs": span.last_ms}
        yield Entry("appendTimes", fields)


def dump_clean_shutdown(source: Source, options: DumpOptions) -> Iterator[Entry]:
    epoch = decode_clean_shutdown(source.fs.read(source.path))
    yield Entry("cleanShutdown", {"brokerEpoch": epoch})
