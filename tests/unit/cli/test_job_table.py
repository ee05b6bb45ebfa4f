"""`varve job table` and `varve table expire` without Spark."""

from pathlib import Path

import pytest

import varve
from tests.support.table_bench import TABLE, TableBench
from tests.support.varve_command import run_varve


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    with varve.open(path, maintain=False) as store:
        store.create_topic("orders").append(value="x")
    return path


def test_a_damaged_catalog_is_nothing_for_varve_check(data: str) -> None:
    catalog = Path(f"{data}.tables/catalog.db")
    catalog.parent.mkdir()
    catalog.write_bytes(b"this is no database at all" * 100)
    failed = run_varve("job", "table", "orders", "--dir", data, "--to", "a.b", code=1)
    assert "restore it from a copy" in failed.stderr
    assert "varve check" not in failed.stderr
    assert f" file://{catalog.parent}:" in failed.stderr


def test_old_snapshots_of_a_table_expire(tmp_path: Path) -> None:
    bench = TableBench(tmp_path)
    for number in range(2):
        bench.topic.put((f"k{number}", "x"))
        bench.sync()
    bench.close()
    where = ("--warehouse", tmp_path / "tables", "--older-than", "0s")
    assert run_varve("table", "expire", TABLE, *where, "--yes", "--json").rows == [
        {"type": "expiry", "table": TABLE, "snapshots": 1, "kept": 1, "removed": 1}
    ]
