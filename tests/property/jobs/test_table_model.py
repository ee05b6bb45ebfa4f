"""Any history of appends, deletions, expiry and syncs: the tables equal a list and a dict."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.table_bench import TableBench
from varve.jobs.table.definition import TableMode, TableSettings, ValueFormat

PARTITIONS = 2
BAD = "oops"

Write = tuple[int, list[tuple[str, str | int | None]]]

writes = st.tuples(
    st.integers(0, PARTITIONS - 1),
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"), st.one_of(st.integers(0, 99), st.none(), st.just(BAD))
        ),
        min_size=1,
        max_size=6,
    ),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), writes),
        st.tuples(st.just("roll"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("expire"), st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 8))),
        st.tuples(st.just("sync"), st.sampled_from([1, 1 << 30])),
    ),
    max_size=10,
)


@dataclass
class Model:
    """What the log holds, by partition: key and value of each offset."""

    records: dict[int, list[tuple[str, str | int | None]]] = field(
        default_factory=lambda: {number: [] for number in range(PARTITIONS)}
    )
    starts: dict[int, int] = field(default_factory=dict)

    def appended(self) -> set[tuple[int, int, bytes, int | None, bool]]:
        return {
            (number, offset, key.encode(), value if isinstance(value, int) else None, value is None)
            for number, offset, key, value in self._rows()
            if value != BAD
        }

    def upserted(self) -> set[tuple[int, int, bytes, int | None]]:
        last: dict[tuple[int, str], tuple[int, str | int | None]] = {}
        for number, records in self.records.items():
            for offset, (key, value) in enumerate(records):
                if value != BAD:
                    last[number, key] = (offset, value)
        return {
            (number, offset, key.encode(), value)
            for (number, key), (offset, value) in last.items()
            if isinstance(value, int) and offset >= self.starts.get(number, 0)
        }

    def bad(self) -> set[tuple[int, int]]:
        return {(number, offset) for number, offset, _, value in self._rows() if value == BAD}

    def _rows(self) -> list[tuple[int, int, str, str | int | None]]:
        return [
            (number, offset, key, value)
            for number, records in self.records.items()
            for offset, (key, value) in enumerate(records)
            if offset >= self.starts.get(number, 0)
        ]


def play(
    bench: TableBench, model: Model, step: tuple[str, object], sync: Callable[[int], None]
) -> None:
    match step:
        case ("write", (int() as number, list() as pairs)):
            model.records[number] += pairs
            bench.topic.put(*[(key, show(value)) for key, value in pairs], partition=number)
        case ("roll", int() as number):
            bench.topic.roll(number)
            bench.topic.copy(number)
        case ("expire", (int() as number, int() as count)):
            start = min(model.starts.get(number, 0) + count, len(model.records[number]))
            model.starts[number] = start
            bench.expire_to(start, number)
        case ("sync", int() as limit):
            sync(limit)


def show(value: str | int | None) -> str | None:
    return json.dumps({"v": value}) if isinstance(value, int) else value


@pytest.mark.parametrize("mode", list(TableMode))
@settings(max_examples=4)
@given(history=steps)
def test_the_table_equals_the_model(mode: TableMode, history: list[tuple[str, object]]) -> None:
    root = Path(tempfile.mkdtemp())
    bench = TableBench(root, partitions=PARTITIONS)
    model = Model()

    def sync(limit: int) -> None:
        bench.sync(
            TableSettings(
                mode=mode,
                format=ValueFormat.JSON,
                schema='{"v": "long"}',
                buckets=2 if mode is TableMode.UPSERT else None,
                commit_bytes=limit,
            )
        )

    try:
        for step in history:
            play(bench, model, step, sync)
        sync(1)
        rows = bench.rows()
        if mode is TableMode.APPEND:
            found = [
                (row["_partition"], row["_offset"], row["_key"], row["v"], row["_deleted"])
                for row in rows
            ]
            assert (len(found), set(found)) == (len(model.appended()), model.appended())
        else:
            kept = [(row["_partition"], row["_offset"], row["_key"], row["v"]) for row in rows]
            assert (len(kept), set(kept)) == (len(model.upserted()), model.upserted())
        bad = [(row["_partition"], row["_offset"]) for row in bench.bad_rows()]
        assert (len(bad), set(bad)) == (len(model.bad()), model.bad())
    finally:
        bench.close()
        shutil.rmtree(root)
