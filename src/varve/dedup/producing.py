"""Batches made part of a producer's transaction.

Invariant  all that producers may not set (offsets, leader epoch) is as a fresh batch has it; the
           CRC is made anew.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.kernels.crc import crc32c
from varve.records import decode_header, increment_sequence
from varve.records.header import CRC_START, TRANSACTIONAL_BIT

_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LEADER_EPOCH_POSITION: Final = 12
_CRC: Final = struct.Struct(">I")
_CRC_POSITION: Final = 17
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_POSITION: Final = 21
_PRODUCER: Final = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_POSITION: Final = 43


@dataclass(frozen=True, slots=True)
class Producer:
    """Who writes, and which instance of it; a higher epoch fences the lower ones."""

    id: int
    epoch: int


def join_transaction(batch: bytes | bytearray, producer: Producer, base_sequence: int) -> bytearray:
    """The batch as one of the producer's transaction; a bytearray is changed in place."""
    joined = batch if isinstance(batch, bytearray) else bytearray(batch)
    _BASE_OFFSET.pack_into(joined, 0, 0)
    _LEADER_EPOCH.pack_into(joined, _LEADER_EPOCH_POSITION, -1)
    (attributes,) = _ATTRIBUTES.unpack_from(joined, _ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(joined, _ATTRIBUTES_POSITION, attributes | TRANSACTIONAL_BIT)
    _PRODUCER.pack_into(joined, _PRODUCER_POSITION, producer.id, producer.epoch, base_sequence)
    _CRC.pack_into(
        joined, _CRC_POSITION, crc32c(np.frombuffer(joined, np.uint8), CRC_START, len(joined))
    )
    return joined


def join_all(
    batches: Sequence[bytes | bytearray], producer: Producer, base_sequence: int
) -> tuple[list[bytearray], int]:
    """The batches one behind the other in the producer's transaction, and the next sequence."""
    joined = []
    for batch in batches:
        joined.append(join_transaction(batch, producer, base_sequence))
        count = decode_header(batch).last_offset_delta + 1
        base_sequence = increment_sequence(base_sequence, count)
    return joined, base_sequence
