"""The check of the records of groups and transactions in a server's internal topics.

Invariant  the latest record of each key counts, as at the start of a server. A record that a server
           would leave out is a finding; batches that cannot be parsed are findings too.
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
from varve.wire.messages.state_records import INTERNAL_TOPICS
from varve.wire.state_records import decode_state_record

RULE: Final = "state-record"
STATE_RULES: Final = {
    RULE: "A server can read the latest record of each key in its internal topics."
}

_Latest = dict[bytes, tuple[int, bytes | None, str]]
"""By key the offset and value of its latest record, and the file that has it."""


def check_state_records(fs: FileSystem, facts: DirectoryFacts) -> list[Finding]:
    """The records in partitions of internal topics that a server cannot read."""
    findings = FindingList(STATE_RULES)
    for partition, partition_facts in sorted(facts.partitions.items()):
        if partition.topic in INTERNAL_TOPICS:
            _check_partition(fs, partition, partition_facts, findings)
    return findings.all()


def _check_partition(
    fs: FileSystem, partition: TopicPartition, facts: PartitionFacts, findings: FindingList
) -> None:
    latest: _Latest = {}
    for segment in facts.segments:
        path = f"{facts.directory}/{log_name(segment.base_offset)}"
        with fs.open(path) as file:
            for table in BatchWalk(file, start=0, end=segment.good_end, verify_crc=False):
                _read_table(table, path, latest, findings)
    for key, (offset, value, path) in latest.items():
        try:
            decode_state_record(partition.topic, key, value, f"offset {offset}")
        except Corrupt as error:
            findings.error(path, RULE, f"a server cannot read the record and ignores it: {error}")


def _read_table(table: BatchTable, path: str, latest: _Latest, findings: FindingList) -> None:
    rows = table.rows.copy()
    rows = rows[(rows[:, BatchColumn.ATTRIBUTES] & CONTROL_BIT) == 0]
    rows[:, BatchColumn.POSITION] -= table.start
    try:
        for columns, _ in parse_columns(np.asarray(table.buffer), rows, where=path):
            for key, offset, value in _keyed(columns):
                latest[key] = offset, value, path
    except Corrupt as error:
        position = int(table.rows[0, BatchColumn.POSITION])
        text = str(error).removeprefix(f"{path}: ")
        message = f"records from here on cannot be parsed: {text}"
        findings.error(path, RULE, message, position=position)


def _keyed(columns: RecordColumns) -> Iterator[tuple[bytes, int, bytes | None]]:
    """Key, offset and value of each record that has a key."""
    payload = columns.payload.tobytes()
    for offset, start, size, value_start, value_size in zip(
        columns.offsets.tolist(),
        columns.key_starts.tolist(),
        columns.key_sizes.tolist(),
        columns.value_starts.tolist(),
        columns.value_sizes.tolist(),
        strict=True,
    ):
        if size >= 0:
            value = payload[value_start : value_start + value_size] if value_size >= 0 else None
            yield payload[start : start + size], offset, value
