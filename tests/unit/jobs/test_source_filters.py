"""Which filters of a query the source takes, and which Spark must look at again."""

from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from varve.jobs.source.options import SourceFilters, parse_options
from varve.spark.columns import make_schema
from varve.spark.data_source import FilteringReader


def push(*filters: Filter, **options: str) -> tuple[SourceFilters, list[Any]]:
    """What the reader took, and what it left to Spark."""
    given = parse_options({"url": "memory:", "topic": "orders", **options})
    reader = FilteringReader(given, make_schema())
    left = list(reader.pushFilters(list(filters)))
    return reader._filters, left


def test_partitions_and_offsets_are_taken_for_good() -> None:
    taken, left = push(
        In(("partition",), (1, 2, 3)),
        EqualTo(("partition",), 2),
        GreaterThan(("offset",), 4),
        LessThanOrEqual(("offset",), 9),
    )
    assert taken == SourceFilters(partitions=frozenset({2}), start_offset=5, end_offset=10)
    assert left == []
    assert push(GreaterThanOrEqual(("offset",), 4))[0].start_offset == 4
    assert push(LessThan(("offset",), 4))[0].end_offset == 4


def test_times_and_keys_are_taken_and_looked_at_again() -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    time, key = GreaterThanOrEqual(("timestamp",), moment), EqualTo(("key",), bytearray(b"k"))
    taken, left = push(time, key)
    assert taken.min_ms == round(moment.timestamp() * 1000) - 1
    assert taken.keys == frozenset({b"k"})
    assert left == [time, key]


def test_several_offsets_bound_the_read_and_are_looked_at_again() -> None:
    several = In(("offset",), (7, 3))
    taken, left = push(several)
    assert (taken.start_offset, taken.end_offset, left) == (3, 8, [several])


def test_of_the_latest_state_only_partitions_and_keys_are_chosen_before() -> None:
    offset, key = GreaterThan(("offset",), 4), EqualTo(("key",), b"k")
    taken, left = push(offset, key, EqualTo(("partition",), 1), mode="latest")
    assert taken == SourceFilters(partitions=frozenset({1}), keys=frozenset({b"k"}))
    assert left == [offset, key]


def test_what_the_source_cannot_use_is_left_to_spark() -> None:
    others = [
        IsNotNull(("key",)),
        EqualNullSafe(("key",), None),
        EqualTo(("value",), b"v"),
        EqualTo(("headers", "key"), "h"),
    ]
    assert push(*others) == (SourceFilters(), others)
