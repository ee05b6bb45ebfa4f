"""Produce requests by hand: read in one loop, the batches as slices of what was received.

Invariant  the outcome is that of the compiled functions, in every version, for bytes that break
           the format as well; a test compares them.
"""

from struct import Struct
from typing import Final
from uuid import UUID

from varve.wire.compiler import check_length, read_text, read_uvarint, refuse_null
from varve.wire.header import skip_tags
from varve.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from varve.wire.schema import NO_ID

_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_IDS: Final = 13
_INT16: Final = Struct(">h").unpack_from
_INT32: Final = Struct(">i").unpack_from
_ACKS: Final = Struct(">hi").unpack_from
_OLD_ACKS: Final = Struct(">hii").unpack_from
_OLD_PARTITION: Final = Struct(">ii").unpack_from


def decode_produce(data: memoryview, at: int, version: int) -> ProduceRequest:
    """Raises as the compiled functions do: for what ends too early, and for what is malformed."""
    if version >= _FIRST_FLEXIBLE:
        return _decode(data, at, version)
    return _decode_old(data, at)


def _decode(data: memoryview, at: int, version: int) -> ProduceRequest:
    transactional_id, at = _read_text(data, at)
    acks, timeout_ms = _ACKS(data, at)
    count, at = _read_count(data, at + 6, "topic_data")
    topics = []
    for _ in range(count):
        topic_id, name = NO_ID, ""
        if version >= _FIRST_WITH_IDS:
            check_length(data, at, 16)
            topic_id = UUID(bytes=bytes(data[at : at + 16]))
            at += 16
        else:
            given, at = _read_text(data, at)
            if given is None:
                refuse_null(at, "name")
            name = given or ""
        partition_count, at = _read_count(data, at, "partition_data")
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT32(data, at)
            size, at = read_uvarint(data, at + 4)
            records = None
            if size:
                end = at + size - 1
                if end > len(data):
                    check_length(data, at, size - 1)
                records = data[at:end]
                at = end
            at = at + 1 if data[at] == 0 else skip_tags(data, at)
            partitions.append(PartitionProduceData(index, records))
        at = at + 1 if data[at] == 0 else skip_tags(data, at)
        topics.append(TopicProduceData(name, topic_id, partitions))
    skip_tags(data, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_text(data: memoryview, at: int) -> tuple[str | None, int]:
    length = data[at]
    if length < 0x80:
        at += 1
    else:
        length, at = read_uvarint(data, at)
    if not length:
        return None, at
    end = at + length - 1
    if end > len(data):
        check_length(data, at, length - 1)
    return read_text(data, at, end), end


def _read_count(data: memoryview, at: int, name: str) -> tuple[int, int]:
    count, at = read_uvarint(data, at)
    if not count:
        refuse_null(at, name)
    # Each element has a byte at least.
    check_length(data, at, count - 1)
    return count - 1, at


def _decode_old(data: memoryview, at: int) -> ProduceRequest:
    transactional_id, at = _read_old_text(data, at)
    acks, timeout_ms, count = _OLD_ACKS(data, at)
    at += 10
    _check_count(data, at, count, "topic_data")
    topics = []
    for _ in range(count):
        name, at = _read_old_text(data, at)
        if name is None:
            refuse_null(at, "name")
        (partition_count,) = _INT32(data, at)
        at += 4
        _check_count(data, at, partition_count, "partition_data")
        partitions = []
        for _ in range(partition_count):
            index, size = _OLD_PARTITION(data, at)
            at += 8
            records = None
            if size >= 0:
                end = at + size
                if end > len(data):
                    check_length(data, at, size)
                records = data[at:end]
                at = end
            partitions.append(PartitionProduceData(index, records))
        topics.append(TopicProduceData(name or "", NO_ID, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _check_count(data: memoryview, at: int, count: int, name: str) -> None:
    if count < 0:
        refuse_null(at, name)
    check_length(data, at, count)


def _read_old_text(data: memoryview, at: int) -> tuple[str | None, int]:
    (length,) = _INT16(data, at)
    at += 2
    if length < 0:
        return None, at
    end = at + length
    if end > len(data):
        check_length(data, at, length)
    return read_text(data, at, end), end
