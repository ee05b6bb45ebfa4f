"""Parsing records and hashing their keys, against kafka-python's record reader."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.baselines import parse_with_kafka_python, time_call
from benchmarks.generators import make_batches
from benchmarks.measure import Contest, Scale, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.kernels.batch_scan import Field, batch_table, scan_batches
from varve.kernels.record_parse import Table
from varve.kernels.status import ScanStatus
from varve.records import Batch

_TOPIC_ID = bytes(range(16))


class ParseMeasure:
    """Size: bytes of a record's value; keys have 16 bytes."""

    name = "parse"
    title = "records parsed and their keys hashed, against kafka-python's reader"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (100, 1 << 10)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        yield [parse_contest(size, batch_bytes, scale) for batch_bytes in scale.batch_bytes]


def parse_contest(value_bytes: int, batch_bytes: int, scale: Scale) -> Contest:
    count = max(1, scale.volume_bytes // 8 // batch_bytes)
    data = b"".join(make_batches(count, value_bytes=value_bytes, batch_bytes=batch_bytes))
    table = batch_table(count + 1)
    record_count = parse_with_kafka_python(data)
    if parse_and_hash(data, table) != record_count:
        raise AssertionError("varve and kafka-python count different records")

    def rate(parse: Callable[[], object]) -> Callable[[], float]:
        return lambda: record_count / time_call(parse, scale.ticker)

    return Contest(
        "parse_hash",
        "records/s",
        rate(lambda: parse_and_hash(data, table)),
        rate(lambda: parse_with_kafka_python(data)),
        at_least(50),
        "both verify the CRC32C of each batch; ours gives columns and a 128-bit hash per key, "
        "kafka-python gives objects and no hash; guide: 2.5 M/s at 1 KiB",
        format_bytes(batch_bytes),
    )


def parse_and_hash(data: bytes, table: Table) -> int:
    """Scans consecutive batches with their CRC, parses each and hashes its keys."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    count, _, status = scan_batches(buffer, 0, len(data), True, table)
    if status != ScanStatus.END:
        raise AssertionError(f"scan ended with status {status}")
    view = memoryview(data)
    record_count = 0
    for position, size in table[:count, Field.POSITION : Field.SIZE + 1].tolist():
        columns = Batch(view[position : position + size]).columns()
        columns.hash_keys(_TOPIC_ID)
        record_count += len(columns)
    return record_count
