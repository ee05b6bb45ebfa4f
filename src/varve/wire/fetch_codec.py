"""Fetch responses encoded by hand: the one message that is both large and frequent.

Records are not copied: a response is a list of buffers, and records stay in those they were read
into.

Invariant  the bytes are those of the compiled functions, in every version; a test compares them.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Final

from varve.wire.compiler import encoder, write_uvarint
from varve.wire.messages.data import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)

Buffer = bytes | bytearray | memoryview

_PIECE_BYTES: Final = 4 << 10
"""Smaller records are copied: a buffer of their own would cost more."""
_FIRST_FLEXIBLE: Final = 12
_FIRST_WITH_IDS: Final = 13
_FIRST_WITH_ENDPOINTS: Final = 16

_HEAD: Final = Struct(">ihi")
_THROTTLE: Final = Struct(">i")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_ABORTED: Final = Struct(">qq")
_PARTITION: Final = Struct(">ihqqq")
_PARTITION_4: Final = Struct(">ihqq")


class FetchEncoder:
    """Encodes responses of one version."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._is_flexible = version >= _FIRST_FLEXIBLE
        self._epoch = encoder(EpochEndOffset, version, True)
        self._leader = encoder(LeaderIdAndEpoch, version, True)
        self._snapshot = encoder(SnapshotId, version, True)
        self._endpoint = encoder(NodeEndpoint, version, True)

    def encode_parts(self, message: FetchResponse, out: bytearray) -> list[Buffer]:
        """The response behind what is in `out`, which is the first part."""
        parts: list[Buffer] = []
        if self._version >= 7:
            out += _HEAD.pack(message.throttle_time_ms, message.error_code, message.session_id)
        else:
            out += _THROTTLE.pack(message.throttle_time_ms)
        if self._is_flexible:
            write_uvarint(out, len(message.responses) + 1)
            for topic in message.responses:
                out = self._write_topic(topic, out, parts)
            self._write_endpoints(message.node_endpoints, out)
        else:
            out += _INT32.pack(len(message.responses))
            for topic in message.responses:
                out = self._write_old_topic(topic, out, parts)
        if out:
            parts.append(out)
        return parts

    # From version 12 on

    def _write_topic(
        self, topic: FetchableTopicResponse, out: bytearray, parts: list[Buffer]
    ) -> bytearray:
        if self._version >= _FIRST_WITH_IDS:
            out += topic.topic_id.bytes
        else:
            name = topic.topic.encode()
            write_uvarint(out, len(name) + 1)
            out += name
        write_uvarint(out, len(topic.partitions) + 1)
        for partition in topic.partitions:
            out += _PARTITION.pack(
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
            )
            if partition.aborted_transactions:
                self._write_aborted(partition.aborted_transactions, out)
            else:
                out.append(0 if partition.aborted_transactions is None else 1)
            out += _INT32.pack(partition.preferred_read_replica)
            records = partition.records
            if not records:
                out.append(0 if records is None else 1)
            else:
                write_uvarint(out, len(records) + 1)
                if len(records) < _PIECE_BYTES:
                    out += records
                else:
                    parts.append(out)
                    parts.append(records)
                    out = bytearray()
            self._write_tags(partition, out)
        out.append(0)
        return out

    def _write_aborted(self, aborted: list[AbortedTransaction], out: bytearray) -> None:
        write_uvarint(out, len(aborted) + 1)
        for transaction in aborted:
            out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
            out.append(0)

    def _write_tags(self, partition: PartitionData, out: bytearray) -> None:
        tagged: list[tuple[int, bytearray]] = []
        epoch, leader, snapshot = (
            partition.diverging_epoch,
            partition.current_leader,
            partition.snapshot_id,
        )
        if (epoch.epoch, epoch.end_offset) != (-1, -1):
            tagged.append((0, _written(self._epoch, epoch)))
        if (leader.leader_id, leader.leader_epoch) != (-1, -1):
            tagged.append((1, _written(self._leader, leader)))
        if (snapshot.end_offset, snapshot.epoch) != (-1, -1):
            tagged.append((2, _written(self._snapshot, snapshot)))
        if tagged:
            _write_tagged(tagged, out)
        else:
            out.append(0)

    def _write_endpoints(self, endpoints: list[NodeEndpoint], out: bytearray) -> None:
        if not endpoints or self._version < _FIRST_WITH_ENDPOINTS:
            out.append(0)
            return
        written = bytearray()
        write_uvarint(written, len(endpoints) + 1)
        for endpoint in endpoints:
            self._endpoint(written, endpoint)
        _write_tagged([(0, written)], out)

    # Up to version 11

    def _write_old_topic(
        self, topic: FetchableTopicResponse, out: bytearray, parts: list[Buffer]
    ) -> bytearray:
        name = topic.topic.encode()
        out += _INT16.pack(len(name))
        out += name
        out += _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            self._write_old_partition(partition, out)
            records = partition.records
            out += _INT32.pack(-1 if records is None else len(records))
            if not records:
                continue
            if len(records) < _PIECE_BYTES:
                out += records
            else:
                parts.append(out)
                parts.append(records)
                out = bytearray()
        return out

    def _write_old_partition(self, partition: PartitionData, out: bytearray) -> None:
        head = (
            partition.partition_index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
        )
        if self._version >= 5:
            out += _PARTITION.pack(*head, partition.log_start_offset)
        else:
            out += _PARTITION_4.pack(*head)
        aborted = partition.aborted_transactions
        out += _INT32.pack(-1 if aborted is None else len(aborted))
        for transaction in aborted or ():
            out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
        if self._version >= 11:
            out += _INT32.pack(partition.preferred_read_replica)


@cache
def fetch_encoder(version: int) -> FetchEncoder:
    return FetchEncoder(version)


def _written(write: Callable[[bytearray, object], None], value: object) -> bytearray:
    out = bytearray()
    write(out, value)
    return out


def _write_tagged(tagged: list[tuple[int, bytearray]], out: bytearray) -> None:
    write_uvarint(out, len(tagged))
    for tag, data in tagged:
        write_uvarint(out, tag)
        write_uvarint(out, len(data))
        out += data
