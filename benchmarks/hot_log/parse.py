"""Parsing records and hashing their keys, against kafka-python's record reader."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.baselines import parse_with_kafka_python, time_call
from benchmarks.generators import make_batches
from benchmarks.measure import Contest, Scale, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.records import Batch

_TOPIC_ID = bytes(range(16))
_VOLUME_BYTES = 8 << 20


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
    count = max(1, min(_VOLUME_BYTES, scale.volume_bytes) // batch_bytes)
    data = b"".join(make_batches(count, value_bytes=value_bytes, batch_bytes=batch_bytes))
    record_count = parse_with_kafka_python(data)
    if parse_and_hash(data) != record_count:
        raise AssertionError("varve and kafka-python count different records")

    def rate(parse: Callable[[], object]) -> Callable[[], float]:
        return lambda: record_count / time_call(parse, scale.ticker)

    return Contest(
        "parse_hash",
        "records/s",
        rate(lambda: parse_and_hash(data)),
        rate(lambda: parse_with_kafka_python(data)),
        at_least(50),
        "both verify the CRC32C of each batch; ours gives columns and a 128-bit hash per key, "
        "kafka-python gives objects and no hash; guide: 2.5 M/s at 1 KiB",
        format_bytes(batch_bytes),
    )


def parse_and_hash(data: bytes) -> int:
    """Verifies, parses and hashes batch by batch; gives the record count."""
    position = record_count = 0
    while position < len(data):
        batch = Batch(data, position=position)
        if not batch.is_valid_crc():
            raise AssertionError("varve finds a CRC that does not match")
        columns = batch.columns()
        columns.hash_keys(_TOPIC_ID)
        record_count += len(columns)
        position += batch.header.size
    return record_count
