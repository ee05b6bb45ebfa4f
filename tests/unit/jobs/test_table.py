"""A topic becomes a table: rows, increments, modes, side table, retention, and who comes first."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from tests.support.source_topic import NAME
from tests.support.table_bench import TABLE, TableBench
from tests.support.task_runners import InterferingRunner
from varve.commit_log.names import CLEANER_OFFSET_FILE
from varve.foundation.errors import (
    Corrupt,
    Fenced,
    InconsistentTopicId,
    InvalidRequest,
    NotFound,
    PowerLoss,
    Unavailable,
)
from varve.jobs.source.topic_source import PartitionSource
from varve.jobs.table import table_state
from varve.jobs.table.definition import TableMode, TableSettings, ValueFormat
from varve.jobs.table.sync import sync_table
from varve.jobs.table.table_state import OFFSETS, read_sync_state, referenced_paths
from varve.jobs.tasks import LocalRunner
from varve.records import Record
from varve.topics.outputs import OutputKind

JSON = TableSettings(format=ValueFormat.JSON, schema='{"id": "long required", "name": "string"}')
UPSERT = TableSettings(
    mode=TableMode.UPSERT, format=ValueFormat.JSON, schema=JSON.schema, buckets=3
)
RAW = TableSettings()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TableBench]:
    made = TableBench(tmp_path, partitions=2)
    yield made
    made.close()


def put(bench: TableBench, start: int, end: int, partition: int = 0) -> None:
    pairs = [(f"k{n}", json.dumps({"id": n, "name": f"n{n}"})) for n in range(start, end)]
    bench.topic.put(*pairs, partition=partition)


def test_every_record_of_both_tiers_is_a_row(bench: TableBench) -> None:
    put(bench, 0, 10)
    bench.topic.roll()
    bench.topic.copy()
    put(bench, 10, 15)
    put(bench, 0, 3, partition=1)
    result = bench.sync(JSON)
    assert (result.records, result.bad, result.commits) == (18, 0, 1)
    assert result.offsets == {0: 15, 1: 3}
    rows = bench.rows()
    assert bench.places() == [(0, n) for n in range(15)] + [(1, n) for n in range(3)]
    assert rows[12]["_key"] == b"k12"
    assert (rows[12]["id"], rows[12]["name"]) == (12, "n12")
    assert rows[0]["_timestamp"].timestamp() == 1_700_000_000
    assert not rows[0]["_deleted"]


def test_a_second_run_reads_only_what_is_new(bench: TableBench) -> None:
    put(bench, 0, 5)
    bench.sync(JSON)
    before = bench.table().current_snapshot()
    assert bench.sync(JSON).records == 0
    assert bench.table().current_snapshot() == before
    put(bench, 5, 7)
    assert bench.sync(JSON).records == 2
    assert bench.places() == [(0, n) for n in range(7)]


def test_offsets_stand_in_the_snapshot_that_brings_the_rows(bench: TableBench) -> None:
    put(bench, 0, 5)
    bench.sync(JSON)
    put(bench, 5, 9)
    bench.sync(JSON)
    table = bench.table()
    told = [one.summary.additional_properties[OFFSETS] for one in table.snapshots() if one.summary]
    assert told == ['{"0": 5, "1": 0}', '{"0": 9, "1": 0}']
    assert table.properties[OFFSETS] == told[-1]


def test_a_table_that_was_rolled_back_gets_the_same_rows_again(bench: TableBench) -> None:
    put(bench, 0, 5)
    bench.sync(JSON)
    table = bench.table()
    first = table.current_snapshot()
    assert first is not None
    put(bench, 5, 9)
    bench.sync(JSON)
    table = bench.table()
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert bench.sync(JSON).records == 4
    assert bench.places() == [(0, n) for n in range(9)]


def test_raw_rows_hold_the_bytes_and_the_headers(bench: TableBench) -> None:
    bench.topic.append([Record(b"k", b"\xff\x00", (("h", b"1"), ("h", None)), bench.topic.now)])
    bench.sync(RAW)
    (row,) = bench.rows()
    assert row["value"] == b"\xff\x00"
    assert row["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_only_touched_buckets_are_written_anew(bench: TableBench) -> None:
    put(bench, 0, 20)
    bench.sync(UPSERT)
    before = bench.named_files()
    assert len(before) == 3
    bench.topic.put(("k3", '{"id": 333}'))
    bench.sync(UPSERT)
    assert len(before & bench.named_files()) == 2


def test_a_bad_value_leaves_the_row_of_its_key_as_it_was(bench: TableBench) -> None:
    bench.topic.put(("a", '{"id": 1}'))
    bench.sync(UPSERT)
    bench.topic.put(("a", '{"id": "x"}'))
    assert bench.sync(UPSERT).bad == 1
    assert [row["id"] for row in bench.rows()] == [1]
    assert [row["_offset"] for row in bench.bad_rows()] == [1]


def test_a_record_without_a_key_cannot_be_upserted(bench: TableBench) -> None:
    bench.topic.append([Record(None, b'{"id": 1}', timestamp=bench.topic.now)])
    assert bench.sync(UPSERT).bad == 1
    assert "no key" in bench.bad_rows()[0]["reason"]


def test_bad_rows_go_to_the_side_table_with_the_reason(bench: TableBench) -> None:
    bench.topic.put(("a", '{"id": 1}'), ("b", "oops"), ("c", '{"name": "x"}'), ("d", '{"id": 1.5}'))
    result = bench.sync(JSON)
    assert (result.records, result.bad) == (4, 3)
    assert bench.places() == [(0, 0)]
    bad = bench.bad_rows()
    assert [row["_key"] for row in bad] == [b"b", b"c", b"d"]
    assert bad[0]["value"] == b"oops"
    assert "not JSON" in bad[0]["reason"]
    assert bad[1]["reason"] == "field id is required and missing"
    assert "field id" in bad[2]["reason"]


def test_columns_are_inferred_and_told(bench: TableBench) -> None:
    bench.topic.put(
        ("a", '{"id": 1, "x": 1, "tags": ["a"], "who": {"age": 5}, "mixed": 1, "_key": 2}'),
        ("b", '{"id": 2, "x": 1.5, "mixed": "a", "none": null, "bad name": 1}'),
    )
    result = bench.sync(TableSettings(format=ValueFormat.JSON))
    told = ("id long", "x double", "tags list<string>", "who struct<age: long>")
    assert result.inferred == told
    rows = bench.rows()
    assert (rows[0]["x"], rows[0]["tags"], rows[0]["who"]) == (1.0, ["a"], {"age": 5})
    assert json.loads(rows[0]["_rest"]) == {"mixed": 1, "_key": 2}
    assert json.loads(rows[1]["_rest"]) == {"mixed": "a", "bad name": 1}


def test_nothing_can_be_inferred_from_no_records(bench: TableBench) -> None:
    with pytest.raises(InvalidRequest, match="none of its first 1000 records"):
        bench.sync(TableSettings(format=ValueFormat.JSON))
    assert bench.files() == set()


def test_new_fields_are_kept_aside_until_columns_are_added(bench: TableBench) -> None:
    put(bench, 0, 2)
    bench.sync(JSON)
    bench.topic.put(("a", '{"id": 7, "colour": "red"}'))
    bench.sync(JSON)
    assert bench.rows()[-1]["_rest"] == '{"colour": "red"}'
    bench.topic.put(("b", '{"id": 8, "colour": "blue"}'))
    result = bench.sync(TableSettings(is_adding_columns=True))
    assert result.added_columns == ("colour string",)
    rows = bench.rows()
    assert [row["colour"] for row in rows] == [None, None, None, "blue"]
    assert rows[-1]["_rest"] is None


def test_upserted_rows_of_before_a_new_column_stay(bench: TableBench) -> None:
    put(bench, 0, 9)
    bench.sync(UPSERT)
    bench.topic.put(*[(f"k{n}", '{"id": 7, "colour": "red"}') for n in range(0, 9, 2)])
    bench.sync(TableSettings(is_adding_columns=True))
    rows = {row["_key"]: row["colour"] for row in bench.rows()}
    assert len(rows) == 9
    assert (rows[b"k0"], rows[b"k1"]) == ("red", None)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (TableSettings(schema='{"id": "string"}'), "column id long required is given as id string"),
        (TableSettings(schema='{"id": "long required", "new": "int"}'), "no columns for new int"),
        (TableSettings(mode=TableMode.UPSERT), "has mode append, not upsert"),
        (TableSettings(format=ValueFormat.RAW), "has format json, not raw"),
    ],
)
def test_a_schema_that_does_not_fit_changes_nothing(
    bench: TableBench, settings: TableSettings, told: str
) -> None:
    put(bench, 0, 2)
    bench.sync(JSON)
    before = bench.table().metadata
    put(bench, 2, 4)
    with pytest.raises(InvalidRequest, match=told):
        bench.sync(settings)
    assert bench.table().metadata == before


def test_a_table_that_varve_did_not_make_is_left_alone(bench: TableBench) -> None:
    put(bench, 0, 2)
    bench.sync(JSON)
    catalog = bench.address.open()
    foreign = catalog.create_table("shop.other", bench.table().schema())
    with pytest.raises(InvalidRequest, match="not created by varve"):
        bench.sync(JSON, name="shop.other")
    assert catalog.load_table("shop.other").metadata == foreign.metadata
    catalog.close()


def test_a_topic_that_was_made_anew_is_another_topic(bench: TableBench) -> None:
    put(bench, 0, 2)
    bench.sync(JSON)
    bench.topic.kit.store.delete_topic(NAME)
    bench.topic.topic = bench.topic.kit.store.create_topic(
        NAME, partitions=2, settings={"remote.storage.enable": True}
    )
    put(bench, 0, 1)
    with pytest.raises(InconsistentTopicId, match="recreated"):
        bench.sync(JSON)


def test_a_topic_that_is_not_there_makes_no_table(bench: TableBench) -> None:
    with pytest.raises(NotFound, match="nothing"):
        sync_table(
            "nothing",
            TABLE,
            catalog=bench.address,
            directories=[bench.topic.kit.path],
            runner=LocalRunner(),
        )


def test_a_tiered_topic_is_not_read_without_its_store(bench: TableBench) -> None:
    with pytest.raises(InvalidRequest, match="give their object store too"):
        sync_table(
            NAME,
            TABLE,
            catalog=bench.address,
            directories=[bench.topic.kit.path],
            runner=LocalRunner(),
        )


def test_rows_below_the_log_start_leave_the_table(bench: TableBench) -> None:
    put(bench, 0, 10)
    bench.topic.put(("x", "bad"))
    put(bench, 0, 4, partition=1)
    bench.sync(JSON)
    put(bench, 11, 13)
    bench.sync(JSON)
    bench.expire_to(11)
    bench.expire_to(2, partition=1)
    result = bench.sync(JSON)
    assert result.expired_rows == 13
    assert bench.places() == [(0, 11), (0, 12), (1, 2), (1, 3)]
    assert bench.bad_rows() == []
    assert bench.sync(JSON).expired_rows == 0


def test_expired_rows_may_be_kept(bench: TableBench) -> None:
    put(bench, 0, 10)
    bench.sync(JSON)
    bench.expire_to(5)
    assert bench.sync(TableSettings(is_keeping_expired=True)).expired_rows == 0
    assert len(bench.rows()) == 10


def test_what_left_the_log_before_it_was_read_is_told(bench: TableBench) -> None:
    put(bench, 0, 10)
    bench.sync(JSON)
    put(bench, 10, 20)
    bench.expire_to(15)
    assert bench.sync(JSON).missed == 5
    assert bench.places() == [(0, n) for n in range(15, 20)]


def test_the_table_is_noted_before_it_is_written(bench: TableBench) -> None:
    put(bench, 0, 2)
    bench.topic.roll()
    bench.topic.copy()
    bench.address = type(bench.address)(
        bench.address.warehouse, None, (("s3.secret-access-key", "hidden"), ("echo", "false"))
    )
    bench.sync(JSON)
    (output,) = bench.outputs()
    assert (output.kind, output.name) == (OutputKind.TABLE, TABLE)
    assert dict(output.how)["setting.echo"] == "false"
    assert "hidden" not in repr(output)


# Killed, repeated, and two at once


@pytest.mark.parametrize("settings", [JSON, UPSERT])
def test_a_second_run_takes_over_and_the_first_is_fenced(
    bench: TableBench, settings: TableSettings
) -> None:
    put(bench, 0, 5)
    bench.topic.put(("x", "bad"))
    second = InterferingRunner(lambda: bench.sync(settings))
    with pytest.raises(
        (Fenced, Unavailable), match=r"taken over by another run|staged.*No such file"
    ):
        bench.sync(settings, runner=second)
    assert bench.places() == [(0, n) for n in range(5)]
    assert [row["_offset"] for row in bench.bad_rows()] == [5]
    assert bench.files() == bench.named_files()
    assert bench.marks() == []
    assert bench.sync(settings).records == 0


@pytest.mark.parametrize("settings", [JSON, UPSERT])
def test_a_commit_of_another_program_is_built_upon(
    bench: TableBench, settings: TableSettings
) -> None:
    put(bench, 0, 5)
    bench.sync(settings)
    put(bench, 5, 9)

    def commit() -> None:
        with bench.table().transaction() as transaction:
            transaction.update_snapshot().fast_append().commit()

    assert bench.sync(settings, runner=InterferingRunner(commit)).records == 4
    assert bench.places() == [(0, n) for n in range(9)]
    named = {path.removeprefix("file://") for path in referenced_paths(bench.table())}
    assert bench.files() == named


def test_a_side_table_that_is_ahead_is_taken_back(
    bench: TableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic.put(("x", "bad"), ("a", '{"id": 1}'))
    bench.sync(JSON)
    bench.topic.put(("y", "bad"), ("b", '{"id": "2"}'))
    real = table_state.commit

    def commit(table: Table, **more: Any) -> None:
        if table.name()[-1] == "orders":
            raise PowerLoss
        real(table, **more)

    with monkeypatch.context() as patch:
        patch.setattr(table_state, "commit", commit)
        with pytest.raises(PowerLoss):
            bench.sync(JSON)
    assert len(bench.bad_rows()) == 3
    assert read_sync_state(bench.table()).offsets[0] == 2
    assert bench.sync(JSON).bad == 2
    assert [row["_offset"] for row in bench.bad_rows()] == [0, 2, 3]


def test_a_failed_task_leaves_nothing(bench: TableBench) -> None:
    put(bench, 0, 5)

    def fail() -> None:
        raise Corrupt("a segment is damaged")

    with pytest.raises(Corrupt, match="damaged"):
        bench.sync(JSON, runner=InterferingRunner(fail))
    assert bench.files() == set()
    assert bench.marks() == []
    assert bench.rows() == []


def test_deletions_that_left_the_log_unseen_make_the_table_anew(
    bench: TableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic.put(("x", "bad"))
    put(bench, 1, 4)
    bench.sync(UPSERT)
    bench.topic.put(("k7", '{"id": 7}'), ("y", "bad"))
    with monkeypatch.context() as patch:
        patch.setattr(PartitionSource, "cleaned_up_to", 6)
        result = bench.sync(UPSERT)
    assert (result.is_rebuilt, result.records, result.commits) == (True, 6, 1)
    assert bench.places() == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert [row["_offset"] for row in bench.bad_rows()] == [0, 5]
    assert not bench.sync(UPSERT).is_rebuilt


def test_a_table_made_anew_keeps_the_expired_rows_it_is_to_keep(
    bench: TableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = replace(UPSERT, is_keeping_expired=True)
    put(bench, 0, 6)
    bench.sync(keeping)
    bench.expire_to(3)
    put(bench, 1, 2)
    monkeypatch.setattr(PartitionSource, "cleaned_up_to", 7)
    assert bench.sync(keeping).is_rebuilt
    assert bench.places() == [(0, 0), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]


def test_a_table_that_has_read_nothing_above_the_log_start_needs_no_tombstones(
    bench: TableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench, 0, 6)
    bench.sync(UPSERT)
    bench.expire_to(6)
    put(bench, 1, 2)
    monkeypatch.setattr(PartitionSource, "cleaned_up_to", 7)
    assert not bench.sync(UPSERT).is_rebuilt
    assert bench.places() == [(0, 6)]


def test_a_deleted_key_leaves_the_table_whatever_compactions_were_told(tmp_path: Path) -> None:
    """The log lets go of tombstones at once, and its checkpoint of how far may be lost."""
    bench = TableBench(
        tmp_path,
        cleanup_policy="compact",
        delete_retention_ms=0,
        min_cleanable_dirty_ratio=0,
        remote_storage_enable=False,
    )
    put(bench, 0, 4)
    bench.topic.roll()
    bench.topic.kit.clean_now(roll=False)
    bench.sync(UPSERT)
    assert read_sync_state(bench.table()).cleaned == {0: 4}
    bench.topic.put(("k1", None), ("k2", '{"id": 5}'))
    for _ in range(3):
        bench.topic.roll()
        bench.topic.kit.clean_now(roll=False)
        bench.topic.put(("other", '{"id": 9}'))
    assert b"k1" not in [one.key for one in bench.topic.topic.read(partition=0)]
    result = bench.sync(UPSERT)
    assert result.is_rebuilt
    assert b"k1" not in [row["_key"] for row in bench.rows()]
    bench.topic.put(("other", '{"id": 10}'))
    (tmp_path / "data" / CLEANER_OFFSET_FILE).unlink()
    assert bench.sync(UPSERT).is_rebuilt
    bench.close()
