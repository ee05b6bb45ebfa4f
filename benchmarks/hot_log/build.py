"""Building batches from records, against the fastest Python client library."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.baselines import (
    BASE_TIMESTAMP_MS,
    build_with_client,
    fastest_client_builder,
    new_aiokafka_builder,
    time_call,
)
from benchmarks.generators import make_records, records_per_batch
from benchmarks.measure import Contest, Scale, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.records import BinaryColumn, build_batch_from_columns

_ATTRIBUTES_POSITION = 21


class BuildMeasure:
    """Size: bytes of a record's value; keys have 16 bytes."""

    name = "build"
    title = "batches built from columns and from lists, against the fastest client library"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (100, 1 << 10)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        yield [
            contest
            for batch_bytes in scale.batch_bytes
            for contest in build_contests(size, batch_bytes, scale)
        ]


def build_contests(value_bytes: int, batch_bytes: int, scale: Scale) -> list[Contest]:
    """From columns and from lists, both against the client library that is fastest here."""
    per_batch = records_per_batch(value_bytes=value_bytes, batch_bytes=batch_bytes)
    records = make_records(per_batch, value_bytes=value_bytes)
    keys, values = [key for key, _ in records], [value for _, value in records]
    key_column, value_column = BinaryColumn.of(keys), BinaryColumn.of(values)
    timestamps = np.arange(per_batch, dtype=np.int64) + BASE_TIMESTAMP_MS
    new_builder = fastest_client_builder(records)

    def from_columns() -> bytes:
        return build_batch_from_columns(key_column, value_column, timestamps)

    def from_lists() -> bytes:
        return build_batch_from_columns(BinaryColumn.of(keys), BinaryColumn.of(values), timestamps)

    def client() -> bytes:
        return build_with_client(new_builder, records)

    _check_same_bytes(from_columns(), client())
    _check_same_bytes(from_lists(), client())
    library = "aiokafka" if new_builder is new_aiokafka_builder else "kafka-python"
    rounds = max(1, scale.volume_bytes // 2 // batch_bytes)

    def rate(build: Callable[[], bytes]) -> Callable[[], float]:
        def build_all() -> None:
            for _ in range(rounds):
                build()

        return lambda: rounds * per_batch / time_call(build_all, scale.ticker)

    note = f"CRC32C computed on both sides; the fastest client library here is {library}"
    within, unit = format_bytes(batch_bytes), "records/s"
    return [
        Contest(
            "build_columns", unit, rate(from_columns), rate(client), at_least(10), note, within
        ),
        Contest(
            "build_lists",
            unit,
            rate(from_lists),
            rate(client),
            None,
            "starts from lists of bytes",
            within,
        ),
    ]


def _check_same_bytes(ours: bytes, theirs: bytes) -> None:
    # Before the attributes stand base offset and leader epoch, which the broker sets.
    if bytes(ours[_ATTRIBUTES_POSITION:]) != bytes(theirs[_ATTRIBUTES_POSITION:]):
        raise AssertionError("varve and the client library built different batches")
