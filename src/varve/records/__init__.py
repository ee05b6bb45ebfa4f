"""Batches and records as bytes, checksums, compression."""

from varve.records.batch import Batch, RecordColumns
from varve.records.building import (
    BatchFields,
    build_batch,
    build_batch_from_columns,
    empty_batch,
)
from varve.records.columns import BinaryColumn, EncodedHeaders, HeaderColumns
from varve.records.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from varve.records.control import (
    ControlRecord,
    ControlType,
    decode_control_record,
    end_transaction_marker,
)
from varve.records.header import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    Codec,
    TimestampType,
    decode_header,
)
from varve.records.record import Headers, Record
from varve.records.sequence import decrement_sequence, increment_sequence
from varve.records.stamping import (
    assign_offsets,
    rebuild_batch,
    with_log_append_time,
    with_max_timestamp,
)

__all__ = [
    "DECOMPRESSED_BYTES_MAX",
    "HEADER_BYTES",
    "Batch",
    "BatchFields",
    "BatchHeader",
    "BinaryColumn",
    "Buffer",
    "Codec",
    "ControlRecord",
    "ControlType",
    "EncodedHeaders",
    "HeaderColumns",
    "Headers",
    "Record",
    "RecordColumns",
    "TimestampType",
    "assign_offsets",
    "build_batch",
    "build_batch_from_columns",
    "compress",
    "decode_control_record",
    "decode_header",
    "decompress",
    "decrement_sequence",
    "empty_batch",
    "end_transaction_marker",
    "increment_sequence",
    "rebuild_batch",
    "with_log_append_time",
    "with_max_timestamp",
]
