"""`varve job table` and `varve job snapshot` of a store on several disks, without Spark."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import varve
from tests.support.snapshot_topic import rows_of
from tests.support.varve_command import Ran, run_varve
from varve.jobs.snapshot.store import open_snapshot
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.tasks import LocalRunner
from varve.spark import console
from varve.spark.stages import JobReport

KEYS = [f"k{number}" for number in range(12)]


class HereJob:
    """Runs the work in this process."""

    def run(self, work: Callable[[], Any]) -> Any:
        return work()

    def runner(self, topics: object = ()) -> LocalRunner:
        return LocalRunner()

    def report(self, rows: int, result: object) -> object:
        return JobReport(
            job="here",
            application="here",
            started_ms=0,
            duration_ms=1,
            rows=rows,
            stages=(),
            steps=(),
        )


@contextmanager
def open_here(name: str, options: object, **more: object) -> Iterator[HereJob]:
    yield HereJob()


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(console, "open_job", open_here)
    paths = [str(tmp_path / "a disk"), str(tmp_path / "another, too")]
    with varve.open(paths, maintain=False) as store:
        topic = store.create_topic("orders", partitions=4)
        for key in KEYS:
            topic.append(key=key, value=f"v of {key}")
    held = [{one.name for one in Path(path).glob("orders-*")} for path in paths]
    assert all(held)
    return paths


def run(*words: str, code: int = 0, **env: str) -> Ran:
    return run_varve(*words, "--json", code=code, **env)


def given(disks: list[str]) -> list[str]:
    return [word for one in disks for word in ("--dir", one)]


def test_a_snapshot_has_the_partitions_of_every_disk(disks: list[str], tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    run("job", "snapshot", "orders", *given(disks), "--to", place)
    assert {key.decode() for _, key in rows_of(open_snapshot(place))} == set(KEYS)
    again = run("job", "snapshot", "orders", "--to", place, VARVE_DIR=os.pathsep.join(disks))
    assert json.loads(again.stdout.splitlines()[0])["snapshot"] == 1


def test_a_table_has_the_partitions_of_every_disk(disks: list[str]) -> None:
    words = ("job", "table", "orders", "--to", "shop.orders", "--mode", "append")
    run(*words, *given(disks))
    turned = run(*words, *given(disks[::-1]))
    assert json.loads(turned.stdout.splitlines()[0])["records"] == 0, "it is the same table"
    catalog = CatalogAddress(f"{disks[0]}.tables").open()
    rows = catalog.load_table("shop.orders").scan().to_arrow().to_pylist()
    assert sorted(row["_key"].decode() for row in rows) == sorted(KEYS)
    catalog.close()
    assert not os.path.exists(f"{disks[1]}.tables")


@pytest.mark.parametrize(
    "words",
    [
        ("job", "snapshot", "orders", "--to"),
        ("job", "table", "orders", "--to", "a.b", "--warehouse"),
    ],
)
def test_a_disk_that_is_left_out_or_missing_is_told(
    words: tuple[str, ...], disks: list[str], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    left_out = run(*words, str(place), *given(disks[:1]), code=1)
    assert "Give them too" in left_out.stderr
    missing = run(*words, str(place), *given([disks[0], f"{disks[1]}-not"]), code=1)
    assert "does not exist" in missing.stderr
    assert len(missing.stderr.splitlines()) == 1
    assert not list(place.rglob("*.parquet"))


def test_what_several_disks_have_noted_is_forgotten_on_all(
    disks: list[str], tmp_path: Path
) -> None:
    for order, key in ((disks, "k1"), (disks[::-1], "new")):
        with varve.open(disks, maintain=False) as store:
            store.topic("orders").append(key=key, value="again")
        words = given(order)
        run("job", "snapshot", "orders", *words, "--to", str(tmp_path / "place"))
    listed = run("output", "list", "orders", *given(disks)).stdout.splitlines()
    (noted,) = [json.loads(line) for line in listed]
    run("output", "forget", "orders", noted["id"], *given(disks), "--yes")
    assert run("output", "list", "orders", *given(disks)).stdout == ""
