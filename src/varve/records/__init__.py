"""Record batches as bytes: headers, columns, compression, committed batches."""

from varve.kernels.batch_layout import HEADER_BYTES
from varve.kernels.crc import crc32c_of
from varve.records.batch import Batch, Headers, Record, RecordColumns
from varve.records.batch_format import (
    BatchHeader,
    Buffer,
    Codec,
    TimestampType,
    decode_header,
    find_header,
    increment_sequence,
)
from varve.records.building import (
    BatchFields,
    ControlRecord,
    ControlType,
    build_batch,
    build_batch_from_columns,
    build_batch_of,
    decode_control_record,
    empty_batch,
    end_transaction_marker,
    fields_of,
)
from varve.records.columns import BinaryColumn, EncodedHeaders, HeaderColumns
from varve.records.committed import CommittedBatches, parse_columns
from varve.records.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from varve.records.editing import (
    Producer,
    edit_batch,
    rebuild_batch,
    stamp_producer,
    stamp_producer_all,
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
    "CommittedBatches",
    "ControlRecord",
    "ControlType",
    "EncodedHeaders",
    "HeaderColumns",
    "Headers",
    "Producer",
    "Record",
    "RecordColumns",
    "TimestampType",
    "build_batch",
    "build_batch_from_columns",
    "build_batch_of",
    "compress",
    "crc32c_of",
    "decode_control_record",
    "decode_header",
    "decompress",
    "edit_batch",
    "empty_batch",
    "end_transaction_marker",
    "fields_of",
    "find_header",
    "increment_sequence",
    "parse_columns",
    "rebuild_batch",
    "stamp_producer",
    "stamp_producer_all",
    "with_log_append_time",
    "with_max_timestamp",
]
