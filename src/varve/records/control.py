"""Control records: the markers that end transactions.

Layout     key: version and type (int16 each); value of a marker: version (int16), coordinator epoch
           (int32). docs/reference/formats/record-batch.md
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from varve.foundation.errors import Corrupt
from varve.records.batch import Record
from varve.records.building import build_batch

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")


class ControlType(IntEnum):
    """Types of control records; those of Kafka's metadata log are named, but not decoded."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A decoded control record; only ABORT and COMMIT have a coordinator epoch."""

    type: ControlType
    version: int
    coordinator_epoch: int | None = None


def decode_control_record(key: bytes | None, value: bytes | None) -> ControlRecord:
    """Decode a control record; versions above 0 are read as 0, other types become UNKNOWN."""
    if key is None or len(key) < _KEY.size:
        size = "null" if key is None else f"{len(key)} bytes"
        raise Corrupt(f"control record with a key of {size}, at least {_KEY.size} are needed")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise Corrupt(f"control record with key version {version}, the least is 0")
    is_known = ControlType.ABORT <= number <= ControlType.KRAFT_VOTERS
    kind = ControlType(number) if is_known else ControlType.UNKNOWN
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(kind, version)
    return ControlRecord(kind, version, _decode_coordinator_epoch(kind, value))


def _decode_coordinator_epoch(kind: ControlType, value: bytes | None) -> int:
    if value is None or len(value) < _MARKER.size:
        size = "null" if value is None else f"{len(value)} bytes"
        raise Corrupt(f"{kind.name} marker with a value of {size}, {_MARKER.size} are needed")
    version, coordinator_epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise Corrupt(f"{kind.name} marker with value version {version}, the least is 0")
    return int(coordinator_epoch)


def end_transaction_marker(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends the producer's transaction."""
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    record = Record(_KEY.pack(0, kind), _MARKER.pack(0, coordinator_epoch), timestamp=timestamp)
    return build_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
