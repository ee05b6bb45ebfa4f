"""Any rows come out of the batches of a sink as they went in, partition by partition, in order."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sink_bench import batch_of
from varve.commit_log import LogSettings
from varve.embedded.topic import Packaging, partition_of
from varve.jobs.sink.batch_builder import BatchBuilder, SinkTarget, make_rows
from varve.records import Batch, Codec, Producer, stamp_producer

PARTITIONS = 3
NOW_MS = 1_800_000_000_000

CELLS = st.none() | st.binary(max_size=30)
HEADERS = st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": CELLS}), max_size=3)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": CELLS,
            "value": CELLS,
            "headers": st.none() | HEADERS,
            "timestamp": st.none() | st.integers(0, 2**50),
            "partition": st.none() | st.integers(0, PARTITIONS - 1),
        }
    ),
    min_size=1,
    max_size=40,
)

Shown = tuple[Any, ...]


def shown(row: dict[str, Any]) -> Shown:
    """A row as its record must read."""
    pairs = tuple((one["key"], one["value"]) for one in row["headers"] or ())
    time = NOW_MS if row["timestamp"] is None else row["timestamp"] // 1000
    return row["key"], row["value"], pairs, time


@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS, payload_bytes=st.integers(50, 400), codec=st.sampled_from([Codec.NONE, Codec.LZ4])
)
def test_batches_hold_the_rows_of_their_partition_in_order(
    rows: list[dict[str, Any]], payload_bytes: int, codec: Codec
) -> None:
    target = SinkTarget("out", "id", PARTITIONS, LogSettings())
    builder = BatchBuilder(target, Packaging(codec, None, payload_bytes), 1)
    half = len(rows) // 2
    batches = [batch_of(rows[:half]), batch_of(rows[half:])]
    found: dict[int, list[Shown]] = {number: [] for number in range(PARTITIONS)}
    for built in builder.build(make_rows(pa.Table.from_batches(batches), "out")):
        joined = stamp_producer(built.data, Producer(1, 0), 0, default_timestamp=NOW_MS)
        for record in Batch(bytes(joined)).records():
            found[built.partition].append(
                (record.key, record.value, tuple(record.headers), record.timestamp)
            )
    homeless = [row for row in rows if row["partition"] is None and row["key"] is None]
    for number, records in found.items():
        own = [row for row in rows if home_of(row) == number]
        either = [shown(row) for row in rows if row in homeless or home_of(row) == number]
        assert is_within(records, either)
        assert is_within([shown(row) for row in own], records)
    assert sum(map(len, found.values())) == len(rows)


def home_of(row: dict[str, Any]) -> int | None:
    """Where a row must go; None where any partition will do."""
    if row["partition"] is not None:
        return int(row["partition"])
    return None if row["key"] is None else partition_of(row["key"], PARTITIONS)


def is_within(some: list[Shown], all_of_them: list[Shown]) -> bool:
    """Whether some are among all of them, in the same order."""
    rest = iter(all_of_them)
    return all(any(one == other for other in rest) for one in some)
