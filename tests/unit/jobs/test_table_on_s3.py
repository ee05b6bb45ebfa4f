"""A warehouse in a bucket, with its catalog of SQLite beside this process."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.s3_server import BUCKET, s3_server
from tests.support.table_bench import TABLE, TableBench
from tests.support.task_runners import InterferingRunner, lose_power
from varve.foundation.errors import NotFound, PowerLoss, StoreDenied, StoreError, StoreUnavailable
from varve.jobs.derived_outputs import ErasedRows
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.table.definition import BAD, TableMode, TableSettings, ValueFormat
from varve.jobs.table.erase import count_in_table, erase_from_table
from varve.jobs.table.rewrite import expire_snapshots

UPSERT = TableSettings(mode=TableMode.UPSERT, format=ValueFormat.JSON, buckets=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore and werkzeug
def test_a_table_lies_in_a_bucket(tmp_path: Path) -> None:
    with s3_server() as server:
        bench = TableBench(tmp_path)
        settings = {
            "s3.endpoint": server.endpoint,
            "s3.access-key-id": "test",
            "s3.secret-access-key": "test-secret",
            "s3.region": "us-east-1",
        }
        bench.address = CatalogAddress(
            f"s3://{BUCKET}/tables", f"sqlite:///{tmp_path}/catalog.db", tuple(settings.items())
        )
        bench.topic.put(*[(f"k{n}", json.dumps({"id": n})) for n in range(9)])
        bench.topic.roll()
        bench.topic.copy()
        with pytest.raises(PowerLoss):
            bench.sync(UPSERT, runner=InterferingRunner(lose_power, stage="table: merge"))
        assert bench.sync(UPSERT).swept == 3
        bench.topic.put(("k1", '{"id": 100}'), ("k2", None))
        bench.sync(UPSERT)
        assert sorted(row["id"] for row in bench.rows()) == [0, 3, 4, 5, 6, 7, 8, 100]
        assert expire_snapshots(bench.address, TABLE, older_than_ms=1 << 50)[0].removed
        (output,) = bench.outputs()
        wanted = ErasedRows(frozenset({b"k7"}), {0: np.array([5], np.int64)})
        assert erase_from_table(output, settings, wanted).rows == 2
        assert count_in_table(output, settings, wanted) == 0
        assert len(bench.rows()) == 6
        bench.address.open().drop_table(TABLE)
        bench.address.open().drop_table(f"{TABLE}{BAD}")
        gone = ErasedRows(frozenset({b"k3"}), {})
        assert count_in_table(output, settings, gone) == 1
        assert erase_from_table(output, settings, gone).out_of_reach == ()
        assert count_in_table(output, settings, gone) == 0
        left = [key for key in server.etags() if key.startswith("tables/shop/orders/")]
        assert all(key.endswith("/") for key in left), "marks of folders"
        expect_one_line(bench, replace(bench.address, warehouse="s3://none/tables"), NotFound)
    expect_one_line(bench, bench.address, StoreUnavailable)
    bench.close()


def expect_one_line(bench: TableBench, address: CatalogAddress, error: type[StoreError]) -> None:
    bench.address = address
    with pytest.raises((error, StoreDenied)) as caught:
        bench.sync(TableSettings(), name="other.table")
    assert "\n" not in str(caught.value)
