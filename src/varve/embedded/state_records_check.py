"""The check of the records that a server keeps its state in: groups, transactions, the tier's
metadata.

Invariant  of groups and transactions the latest record of each key counts, as at the start of a
           server; of the tier's metadata every event. A record that a server cannot read is a
           finding; batches that cannot be parsed are findings too.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from varve.commit_log.check import Finding
from varve.commit_log.check.directory import DirectoryFacts
from varve.commit_log.check.findings import FindingList
from varve.commit_log.check.partition import PartitionFacts
from varve.commit_log.names import TopicPartition, log_name
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import CONTROL_BIT, BatchColumn
from varve.records.batch import RecordColumns
from varve.records.committed import parse_columns
from varve.tiering.metadata.events import decode_event
from varve.wire.messages.state_records import BROKER_TOPICS, METADATA_TOPIC
from varve.wire.state_records import decode_state_record

RULE: Final = "state-record"
STATE_RULES: Final = {
    RULE: "A server can read the records of groups, transactions and the tier's metadata."
}

_Latest = dict[bytes, tuple[int, bytes | None, str]]
"""By key the offset and value of its latest record, and the file that has it; events of the tier's
metadata have no keys, and are here by their offsets."""


def check_state_records(fs: FileSystem, facts: DirectoryFacts) -> list[Finding]:
    """The records in partitions of internal topics that a server cannot read."""
    findings = FindingList(STATE_RULES)
    for partition, partition_facts in sorted(facts.partitions.items()):
        if partition.topic in BROKER_TOPICS:
            _check_partition(fs, partition, partition_facts, findings)
    return findings.all()


def _check_partition(
    fs: FileSystem, partition: TopicPartition, facts: PartitionFacts, findings: FindingList
) -> None:
    latest: _Latest = {}
    is_keyed = partition.topic != METADATA_TOPIC
    for segment in facts.segments:
        path = f"{facts.directory}/{log_name(segment.base_offset)}"
        with fs.open(path) as file:
            for table in BatchWalk(file, start=0, end=segment.good_end, verify_crc=False):
                _read_table(table, path, latest, findings, is_keyed=is_keyed)
    for key, (offset, value, path) in latest.items():
        try:
            if is_keyed:
                decode_state_record(partition.topic, key, value, f"offset {offset}")
            else:
                decode_event(value or b"", f"offset {offset}")
        except Corrupt as error:
            lost = "ignores it" if is_keyed else "knows no segment of the partitions in this file"
            findings.error(path, RULE, f"a server cannot read the record and {lost}: {error}")


def _read_table(
    table: BatchTable, path: str, latest: _Latest, findings: FindingList, *, is_keyed: bool
) -> None:
    rows = table.rows.copy()
    rows = rows[(rows[:, BatchColumn.ATTRIBUTES] & CONTROL_BIT) == 0]
    rows[:, BatchColumn.POSITION] -= table.start
    try:
        for columns, _ in parse_columns(np.asarray(table.buffer), rows, where=path):
            for key, offset, value in _records(columns):
                if not is_keyed:
                    latest[b"%d" % offset] = offset, value, path
                elif key is not None:
                    latest[key] = offset, value, path
    except Corrupt as error:
        position = int(table.rows[0, BatchColumn.POSITION])
        text = str(error).removeprefix(f"{path}: ")
        message = f"records from here on cannot be parsed: {text}"
        findings.error(path, RULE, message, position=position)


def _records(columns: RecordColumns) -> Iterator[tuple[bytes | None, int, bytes | None]]:
    """Key, offset and value of each record."""
    payload = columns.payload.tobytes()
    for offset, start, size, value_start, value_size in zip(
        columns.offsets.tolist(),
        columns.key_starts.tolist(),
        columns.key_sizes.tolist(),
        columns.value_starts.tolist(),
        columns.value_sizes.tolist(),
        strict=True,
    ):
        key = payload[start : start + size] if size >= 0 else None
        value = payload[value_start : value_start + value_size] if value_size >= 0 else None
        yield key, offset, value
