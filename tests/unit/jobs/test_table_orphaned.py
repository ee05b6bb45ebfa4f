"""A table that left its catalog without its files: no row of it stays, or it is told."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.table_bench import TABLE, TableBench
from tests.unit.jobs.test_table import JSON, UPSERT, put
from varve.disk import RealFileSystem
from varve.foundation.errors import PowerLoss
from varve.jobs.derived_outputs import ErasedOutput, ErasedRows
from varve.jobs.erase.targets import find_topic_outputs
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.table.erase import OrphanedTable, count_in_table, erase_from_table
from varve.topics.outputs import DerivedOutput, LocalOutputRegistry

KEY = ErasedRows(frozenset({b"k3"}), {})
NOBODY = ErasedRows(frozenset({b"nobody"}), {})
BAD = f"{TABLE}__bad"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TableBench]:
    made = TableBench(tmp_path)
    put(made, 0, 6)
    made.topic.put(("k3", "bad"))
    made.topic.roll()
    made.topic.copy()
    made.sync(JSON)
    yield made
    made.close()


def drop(bench: TableBench, *names: str) -> None:
    catalog = bench.address.open()
    for name in names:
        catalog.drop_table(name)
    catalog.close()


def output(bench: TableBench) -> DerivedOutput:
    (found,) = bench.outputs()
    return found


def left(bench: TableBench) -> list[Path]:
    return [one for one in (bench.root / "tables/shop").rglob("*") if one.is_file()]


def erase(
    bench: TableBench, wanted: ErasedRows = KEY, *, siblings: tuple[DerivedOutput, ...] = ()
) -> ErasedOutput:
    return erase_from_table(output(bench), {}, wanted, siblings=siblings)


def test_files_of_a_dropped_table_go(bench: TableBench) -> None:
    drop(bench, TABLE, BAD)
    assert count_in_table(output(bench), {}, KEY) == 2
    done = erase(bench)
    assert (done.rows, len(done.files_before), done.out_of_reach, done.is_there) == (2, 2, (), True)
    assert {one.path for one in done.files_before} <= set(done.removed)
    assert left(bench) == []
    assert count_in_table(output(bench), {}, KEY) == 0
    again = erase(bench)
    assert (again.rows, again.removed, again.out_of_reach, again.is_there) == (0, (), (), True)


def test_files_without_such_rows_stay(bench: TableBench) -> None:
    drop(bench, TABLE, BAD)
    before = left(bench)
    done = erase(bench, NOBODY)
    assert (done.removed, done.out_of_reach) == ((), ())
    assert left(bench) == before


def test_a_side_table_that_was_dropped_alone_goes(bench: TableBench) -> None:
    drop(bench, BAD)
    done = erase(bench)
    assert done.rows == 2
    assert all("orders__bad" not in str(one) for one in left(bench))
    assert [row["_key"] for row in bench.rows()] == [b"k0", b"k1", b"k2", b"k4", b"k5"]


def test_a_file_that_cannot_be_looked_into_goes_with_the_rest(bench: TableBench) -> None:
    drop(bench, TABLE, BAD)
    torn = bench.root / "tables/shop/orders/data/lost/torn.parquet"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"PAR1 k3")
    assert str(torn) in str(erase(bench, NOBODY).removed)
    assert not torn.exists()


def test_an_erasure_that_was_cut_short_is_ended_by_the_next(
    bench: TableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(bench, TABLE, BAD)
    metadata = {one for one in left(bench) if one.name.endswith(".metadata.json")}

    def remove(lost: OrphanedTable) -> list[str]:
        for path in (*(file.path for file in lost.files.files), *lost.others)[:-1]:
            Path(path.removeprefix("file://")).unlink()
        raise PowerLoss

    with monkeypatch.context() as patched:
        patched.setattr(OrphanedTable, "remove", remove)
        with pytest.raises(PowerLoss):
            erase(bench)
    assert metadata & set(left(bench))
    assert erase(bench).out_of_reach == ()
    assert count_in_table(output(bench), {}, KEY) == 0


def test_a_table_under_another_name_is_left_alone_and_told(bench: TableBench) -> None:
    catalog = bench.address.open()
    catalog.rename_table(TABLE, "shop.renamed")
    catalog.close()
    before = len(bench.rows("shop.renamed"))
    done = erase(bench)
    (told,) = done.out_of_reach
    assert "in use by table shop.renamed" in told
    assert "rename it back, and erase again" in told
    assert len(bench.rows("shop.renamed")) == before


def test_a_table_that_another_note_still_has_is_left_to_it(bench: TableBench) -> None:
    metadata = bench.table().metadata_location
    side = bench.table(BAD).metadata_location
    drop(bench, TABLE, BAD)
    moved = CatalogAddress(str(bench.root / "tables"), f"sqlite:///{bench.root}/moved.db")
    catalog = moved.open()
    catalog.create_namespace("shop")
    catalog.register_table(TABLE, metadata)
    catalog.register_table(BAD, side)
    catalog.close()
    noted = output(bench)
    other = replace(noted, how=moved.how(), name=TABLE, place="elsewhere")
    done = erase(bench, siblings=(noted, other))
    assert (done.rows, done.removed) == (0, ())
    assert len(done.out_of_reach) == 2
    assert erase_from_table(other, {}, KEY, siblings=(noted, other)).rows == 2


def test_files_that_are_not_known_to_be_of_the_topic_are_told(bench: TableBench) -> None:
    drop(bench, TABLE, BAD)
    for path in left(bench):
        if path.name.endswith(".metadata.json") and "__bad" not in str(path):
            document = json.loads(path.read_text())
            document["properties"]["varve.topic.id"] = "another"
            path.write_text(json.dumps(document))
    done = erase(bench)
    (told,) = done.out_of_reach
    assert "Delete the files of the table by hand" in told
    assert done.rows == 1, "that of the side table"
    assert [one for one in left(bench) if one.suffix == ".parquet"]


def test_a_location_that_was_not_noted_is_told(bench: TableBench) -> None:
    drop(bench, TABLE, BAD)
    done = erase_from_table(replace(output(bench), locations=()), {}, KEY)
    assert not done.is_there
    assert "no location of its files is registered" in done.out_of_reach[0]


def test_a_location_on_a_missing_disk_is_told(bench: TableBench) -> None:
    noted = replace(output(bench), locations=("file:///not/mounted/shop/orders",))
    drop(bench, TABLE, BAD)
    done = erase_from_table(noted, {}, KEY)
    assert not done.is_there
    assert f"varve output forget orders {noted.id}" in done.out_of_reach[0]


def test_a_table_that_is_made_anew_keeps_the_old_location_noted(bench: TableBench) -> None:
    first = set(output(bench).locations)
    assert first == {bench.table().location(), bench.table(BAD).location()}
    drop(bench, TABLE, BAD)
    catalog = bench.address.open()
    catalog.create_namespace_if_not_exists("shop", {"location": f"file://{bench.root}/tables/new"})
    catalog.update_namespace_properties(
        "shop", updates={"location": f"file://{bench.root}/tables/new"}
    )
    catalog.close()
    bench.sync(UPSERT)
    assert bench.table().location() not in first
    assert first < set(output(bench).locations)
    assert count_in_table(output(bench), {}, KEY) >= 3
    done = erase(bench)
    assert done.out_of_reach == ()
    assert count_in_table(output(bench), {}, KEY) == 0
    assert left(bench) == []


def test_locations_of_all_notes_are_taken_together(bench: TableBench, tmp_path: Path) -> None:
    noted = output(bench)
    books = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        books.append(LocalOutputRegistry(str(tmp_path / name), RealFileSystem()))
        books[-1].note(replace(noted, locations=(f"file:///{name}",)))
    books[0].note(replace(noted, locations=("file:///three",)))
    (found,) = find_topic_outputs(books, noted.topic, noted.topic_id, reachable=()).copies
    assert found.locations == ("file:///one", "file:///three", "file:///two")
