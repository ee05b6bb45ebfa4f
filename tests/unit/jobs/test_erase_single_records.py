"""Single records of keys are erased: tables and snapshots end as the log tells."""

from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest

import varve
from tests.support.task_runners import TravellingRunner
from varve.jobs.derived_outputs import ErasedRows
from varve.jobs.erase import result
from varve.jobs.erase.erasure import erase
from varve.jobs.erase.request import ErasureRequest, FieldMatch, ValueFormat
from varve.jobs.erase.result import ErasureResult
from varve.jobs.snapshot.snapshot import SnapshotResult, take_snapshot
from varve.jobs.snapshot.store import open_snapshot
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.table.definition import TableMode, TableSettings
from varve.jobs.table.definition import ValueFormat as TableFormat
from varve.jobs.table.sync import TableResult, sync_table
from varve.jobs.tasks import LocalRunner, TaskRunner

UPSERT = TableSettings(
    mode=TableMode.UPSERT, format=TableFormat.JSON, schema='{"email": "string"}', buckets=2
)


class Kit:
    """A log directory with a table and a place of snapshots."""

    def __init__(self, root: Path) -> None:
        self.data, self.place = str(root / "data"), str(root / "place")
        self.catalog = CatalogAddress(str(root / "tables"))
        with varve.open(self.data, maintain=False) as store:
            store.create_topic("people", settings={"cleanup.policy": "compact"})
        self.put(k1="old@x", k2="bob@x")
        self.put(k1="ann@x")

    def put(self, **emails: str) -> None:
        with varve.open(self.data, maintain=False) as store:
            for key, email in emails.items():
                store.topic("people").append(key=key, value=f'{{"email": "{email}"}}')

    def sync(self) -> TableResult:
        return sync_table(
            "people",
            "w.people",
            catalog=self.catalog,
            directories=[self.data],
            settings=UPSERT,
            runner=LocalRunner(),
        )

    def take(self) -> SnapshotResult:
        return take_snapshot("people", self.place, directories=[self.data], runner=LocalRunner())

    def erase(self, runner: TaskRunner | None = None, **asked: object) -> ErasureResult:
        return erase(
            ErasureRequest(topics=("people",), **{"id": "one", **asked}),  # type: ignore[arg-type]
            directories=[self.data],
            runner=runner or LocalRunner(),
        )

    def table(self) -> dict[str, str]:
        catalog = self.catalog.open_existing()
        rows = catalog.load_table("w.people").scan().to_arrow().to_pylist()
        catalog.close()
        return {row["_key"].decode(): row["email"] for row in rows}

    def snapshot(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in open_snapshot(self.place).paths:
            for row in pq.read_table(path).to_pylist():
                found[row["key"].decode()] = row["value"].decode().split('"')[3]
        return found


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def test_an_older_record_is_the_latest_again_in_tables_and_snapshots(kit: Kit) -> None:
    kit.sync()
    kit.take()
    done = kit.erase(field=FieldMatch.of("email", ["ann@x"], ValueFormat.JSON))
    assert done.receipt is not None
    told = " ".join(done.receipt["out_of_reach"])
    assert "table w.people lacks keys" in told
    assert "snapshots 1 lack keys" in told
    assert kit.table() == kit.snapshot() == {"k2": "bob@x"}
    assert kit.sync().is_rebuilt
    taken = kit.take()
    assert (taken.is_new, "single records" in taken.partitions[0].note) == (True, True)
    assert kit.table() == kit.snapshot() == {"k1": "old@x", "k2": "bob@x"}
    assert not kit.sync().is_rebuilt
    assert not kit.take().is_new


def test_by_key_nothing_is_made_anew(kit: Kit) -> None:
    kit.sync()
    kit.take()
    done = kit.erase(keys=frozenset({b"k1"}))
    assert done.receipt is not None
    assert "lack" not in " ".join(done.receipt["out_of_reach"])
    kit.put(k3="eve@x")
    assert not kit.sync().is_rebuilt
    assert kit.take().partitions[0].read_from == 3
    assert kit.table() == kit.snapshot() == {"k2": "bob@x", "k3": "eve@x"}


def test_files_of_tables_and_snapshots_are_erased_by_tasks(kit: Kit) -> None:
    kit.sync()
    kit.take()
    runner = TravellingRunner()
    kit.erase(runner, keys=frozenset({b"k2"}))
    assert (kit.table(), kit.snapshot()) == ({"k1": "ann@x"}, {"k1": "ann@x"})
    for stage in (
        "erase from tables: count rows",
        "erase from tables: rewrite files",
        "erase from tables: describe files",
        "erase from snapshots: rewrite files",
        "erase from snapshots: count rows",
    ):
        assert runner.tasks[stage], stage


def test_a_file_of_a_table_without_such_rows_is_not_rewritten(kit: Kit) -> None:
    kit.sync()
    runner = TravellingRunner()
    kit.erase(runner, keys=frozenset({b"nobody"}))
    assert runner.tasks["erase from tables: count rows"]
    assert not runner.tasks["erase from tables: rewrite files"]


def test_offsets_of_a_field_reach_outputs_in_windows(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result, "OFFSETS_MAX", 8)
    monkeypatch.setattr(result, "_SPOOL_BYTES", 64)
    for number in range(30):
        kit.put(**{f"n{number}": "eve@x"})
    kit.sync()
    kit.take()
    runner = TravellingRunner()
    done = kit.erase(runner, field=FieldMatch.of("email", ["eve@x"], ValueFormat.JSON))
    assert done.receipt is not None
    assert done.records == 30
    shared = [one for one in runner.shared if isinstance(one, ErasedRows)]
    assert max(sum(map(len, one.offsets.values())) for one in shared) == 8
    assert kit.table() == kit.snapshot() == {"k1": "ann@x", "k2": "bob@x"}
    outputs = done.receipt["topics"][0]["outputs"]
    assert [output["rows"] for output in outputs] == [30, 30]


def test_tasks_do_not_grow_with_the_keys_of_the_request(kit: Kit) -> None:
    kit.sync()
    kit.take()
    sizes = []
    for count in (10, 10_000):
        runner = TravellingRunner()
        keys = frozenset(f"nobody-{number}".encode() for number in range(count))
        kit.erase(runner, keys=keys, id=f"of-{count}")
        sizes.append(runner.task_bytes)
    assert sizes[1] <= sizes[0] + 16
