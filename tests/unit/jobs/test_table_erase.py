"""Rows are taken out of tables for good: of files, side tables, older snapshots and leftovers."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import CommitTableResponse

from tests.support.table_bench import TABLE, TableBench
from tests.support.task_runners import InterferingRunner, lose_power
from tests.unit.jobs.test_table import JSON, UPSERT, put
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Corrupt, Fenced, InvalidRequest, NotFound, PowerLoss
from varve.jobs.derived_outputs import ErasedRows
from varve.jobs.table.data_files import TableFiles
from varve.jobs.table.definition import TableSettings
from varve.jobs.table.erase import count_in_table, erase_from_table
from varve.jobs.table.rewrite import expire, expire_snapshots, find_expirable
from varve.jobs.table.table_state import (
    CommitConflict,
    begin_run,
    fence_other_runs,
    find_run_markers,
    referenced_paths,
    stream_data_files,
    sweep,
)
from varve.jobs.tasks import LocalRunner, Task, TaskError
from varve.topics.outputs import DerivedOutput

T = TypeVar("T")

KEY = ErasedRows(frozenset({b"k3"}), {})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TableBench]:
    made = TableBench(tmp_path)
    put(made, 0, 6)
    made.topic.roll()
    made.topic.copy()
    yield made
    made.close()


def output(bench: TableBench) -> DerivedOutput:
    (found,) = bench.outputs()
    return found


def find_text(bench: TableBench, text: bytes) -> list[str]:
    """Files of the tables in which a text stands, as in statistics of manifests."""
    return [
        str(path)
        for path in (bench.root / "tables" / "shop").rglob("*")
        if path.is_file() and text in path.read_bytes()
    ]


@pytest.mark.parametrize("settings", [JSON, UPSERT])
def test_a_key_leaves_the_table_and_its_history(bench: TableBench, settings: TableSettings) -> None:
    bench.sync(settings)
    put(bench, 3, 4)
    bench.topic.put(("k3", "bad"))
    bench.sync(settings)
    assert count_in_table(output(bench), {}, KEY) >= 3
    done = erase_from_table(output(bench), {}, KEY)
    assert done.rows == (3 if settings is JSON else 2)
    assert count_in_table(output(bench), {}, KEY) == 0
    assert [row["_key"] for row in bench.rows()] == [b"k0", b"k1", b"k2", b"k4", b"k5"]
    assert bench.bad_rows() == []
    assert len(bench.table().snapshots()) == 1
    assert bench.files() == {
        path.removeprefix("file://") for path in referenced_paths(bench.table())
    }
    assert {one.path for one in done.files_before} <= set(done.removed)
    assert all(not Path(path.removeprefix("file://")).exists() for path in done.removed)
    assert all(one.rows and len(one.sha256) == 64 for one in done.files_before)
    assert done.out_of_reach == ()
    put(bench, 9, 10)
    assert bench.sync(settings).records == 1


def test_offsets_are_erased_where_keys_are_not_known(bench: TableBench) -> None:
    bench.sync(JSON)
    wanted = ErasedRows(frozenset(), {0: np.array([1, 4], np.int64)})
    assert erase_from_table(output(bench), {}, wanted).rows == 2
    assert [row["_offset"] for row in bench.rows()] == [0, 2, 3, 5]


def test_statistics_tell_nothing_of_what_was_erased(bench: TableBench) -> None:
    bench.topic.put(("zz-the-last-key", '{"id": 1, "name": "zz-the-name"}'))
    bench.sync(JSON)
    assert find_text(bench, b"zz-the-last-key")
    erase_from_table(output(bench), {}, ErasedRows(frozenset({b"zz-the-last-key"}), {}))
    assert find_text(bench, b"zz-the-last-key") == []
    assert find_text(bench, b"zz-the-name") == []


def test_what_a_killed_run_left_is_erased_too(bench: TableBench) -> None:
    with pytest.raises(PowerLoss):
        bench.sync(UPSERT, runner=InterferingRunner(lose_power))
    bench.topic.flush()
    torn = bench.root / "tables/shop/orders/data/lost/torn.parquet"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"PAR1 k3")
    with pytest.raises(Corrupt, match="cannot be read as Parquet"):
        count_in_table(output(bench), {}, KEY)
    done = erase_from_table(output(bench), {}, KEY)
    assert (done.rows, len(done.files_before)) == (0, 1)
    assert count_in_table(output(bench), {}, KEY) == 0
    assert bench.files() == set()


def test_a_run_under_way_cannot_bring_erased_rows_back(bench: TableBench) -> None:
    bench.sync(JSON)
    put(bench, 3, 4)

    def erase() -> None:
        erase_from_table(output(bench), {}, KEY)

    with pytest.raises(Fenced):
        bench.sync(JSON, runner=InterferingRunner(erase))
    assert count_in_table(output(bench), {}, KEY) == 0


def test_manifests_of_a_fence_are_no_leftovers(
    bench: TableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sync(JSON)
    begin_run([bench.table()], "killed", SystemClock())
    commit_table = SqlCatalog.commit_table

    def end_killed_and_expire(*arguments: Any) -> CommitTableResponse:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
        sweep(bench.table(), "killed")
        expire_snapshots(bench.address, TABLE, older_than_ms=0)
        return commit_table(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", end_killed_and_expire)
    fence_other_runs([bench.table()], "new", SystemClock())
    assert len(bench.rows()) == 6
    assert bench.marks() == []


class ActingRunner(LocalRunner):
    """Does one thing after each rewrite of files, before its commit."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        outcomes = list(super().try_run(stage, tasks, shared))
        if self.acts and stage.endswith("rewrite files"):
            self.acts.pop(0)()
        return iter(outcomes)


def test_an_erasure_that_was_fenced_goes_on_as_another_run(bench: TableBench) -> None:
    """The one that fenced it may still be deleting the files of the first."""
    bench.sync(JSON)
    fenced: list[str] = []

    def fence() -> None:
        fenced.extend(find_run_markers(bench.table()))
        fence_other_runs([bench.table()], "other", SystemClock())

    def end_fenced_and_expire() -> None:
        sweep(bench.table(), fenced[0])
        expire_snapshots(bench.address, TABLE, older_than_ms=0)

    runner = ActingRunner(fence, end_fenced_and_expire)
    assert erase_from_table(output(bench), {}, KEY, runner=runner).rows == 1
    assert runner.acts == []
    assert [row["_offset"] for row in bench.rows()] == [0, 1, 2, 4, 5]
    assert bench.marks() == []


def test_a_tag_that_holds_rows_ends_the_erasure_and_is_named(bench: TableBench) -> None:
    bench.sync(JSON)
    table = bench.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    put(bench, 9, 10)
    bench.sync(JSON)
    before = bench.rows()
    with pytest.raises(InvalidRequest, match=r"tag audit holds a snapshot with 1 rows.*drop it"):
        erase_from_table(output(bench), {}, KEY)
    assert bench.rows() == before
    assert count_in_table(output(bench), {}, KEY) == 1
    table.refresh()
    table.manage_snapshots().remove_tag("audit").commit()
    assert erase_from_table(output(bench), {}, KEY).out_of_reach == ()
    assert count_in_table(output(bench), {}, KEY) == 0


def test_a_tag_without_such_rows_is_told(bench: TableBench) -> None:
    bench.sync(JSON)
    table = bench.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    bench.topic.put(("new", '{"id": 1}'))
    bench.sync(JSON)
    wanted = ErasedRows(frozenset({b"new"}), {})
    (told,) = erase_from_table(output(bench), {}, wanted).out_of_reach
    assert "tag audit" in told
    assert count_in_table(output(bench), {}, wanted) == 0


def test_older_snapshots_expire_with_their_files(bench: TableBench) -> None:
    bench.sync(UPSERT)
    put(bench, 0, 6)
    bench.sync(UPSERT)
    assert len(bench.files()) > len(bench.named_files())
    main, bad = expire_snapshots(bench.address, TABLE, older_than_ms=1 << 50)
    assert (main.snapshots, main.kept, bad.snapshots) == (1, 1, 0)
    assert bench.files() == bench.named_files()
    assert len(bench.rows()) == 6
    put(bench, 6, 7)
    assert bench.sync(UPSERT).records == 1
    assert expire_snapshots(bench.address, TABLE, older_than_ms=0)[0].snapshots == 0


@pytest.mark.parametrize("is_deleted", [False, True])
def test_snapshots_that_another_program_expired_meanwhile_are_a_conflict(
    bench: TableBench, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    bench.sync(UPSERT)
    put(bench, 0, 6)
    bench.sync(UPSERT)
    stale = bench.table()
    old = find_expirable(stale)
    if not is_deleted:
        monkeypatch.setattr(TableFiles, "delete", lambda self, paths: [])
    expire_snapshots(bench.address, TABLE, older_than_ms=1 << 50)
    with pytest.raises(CommitConflict, match=r"changed by another program .* run again"):
        expire(stale, old)


def test_files_of_a_run_under_way_are_spared(bench: TableBench) -> None:
    bench.sync(JSON)
    put(bench, 6, 9)

    def expire() -> None:
        expire_snapshots(bench.address, TABLE, older_than_ms=1 << 50)

    assert bench.sync(JSON, runner=InterferingRunner(expire)).records == 3
    assert len(bench.rows()) == 9


def test_a_table_that_is_not_there_has_no_snapshots(bench: TableBench) -> None:
    with pytest.raises(NotFound, match=r"catalog\.db is missing"):
        expire_snapshots(bench.address, "shop.nothing", older_than_ms=0)
    bench.sync(JSON)
    with pytest.raises(NotFound, match="has no table"):
        expire_snapshots(bench.address, "shop.none", older_than_ms=0)


@pytest.mark.parametrize("moved", ["tables", "tables/catalog.db", "tables/shop"])
def test_a_table_that_is_moved_away_is_an_error_and_nothing_is_made(
    bench: TableBench, moved: str
) -> None:
    bench.sync(JSON)
    noted = output(bench)
    away = (bench.root / moved).rename(bench.root / "away")
    for look in (erase_from_table, count_in_table):
        with pytest.raises(NotFound):
            look(noted, {}, KEY)
    assert not (bench.root / moved).exists()
    away.rename(bench.root / moved)
    assert erase_from_table(noted, {}, KEY).rows == 1


def test_data_files_are_listed_manifest_by_manifest(
    bench: TableBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sync(JSON)
    for number in range(3):
        put(bench, number, number + 1)
        bench.sync(JSON)
    read: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def count(manifest: ManifestFile, *args: Any, **options: Any) -> list[ManifestEntry]:
        read.append(manifest.manifest_path)
        return fetch(manifest, *args, **options)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", count)
    files = stream_data_files(bench.table())
    next(files)
    assert len(read) == 1
    assert len(list(files)) == 3
    assert len(read) == 4
