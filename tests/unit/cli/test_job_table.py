"""`varve job table`: what is wrong is told in one line, before Spark starts."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import varve
from tests.support.table_bench import TABLE, TableBench
from varve.cli.main import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["job", "table", *arguments])


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    with varve.open(path, maintain=False) as store:
        store.create_topic("orders").append(value="x")
    return path


def test_a_topic_and_a_table_must_be_named(data: str) -> None:
    assert run("orders", "--dir", data).exit_code == 2
    assert run("--to", "a.b", "--dir", data).exit_code == 2
    assert CliRunner().invoke(app, ["table", "expire", "a.b"]).exit_code == 2


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--to", "orders"), "write NAMESPACE.NAME"),
        (("--to", "a.b", "--schema", "/none/at/all"), "cannot be read"),
        (("--to", "a.b", "--catalog", "http://127.0.0.1:9"), "cannot be reached"),
        (("--to", "a.b", "--warehouse", "s3://bucket/x"), "cannot contain a catalog file"),
        (
            ("--to", "a.b", "--format", "raw", "--registry", "http://host"),
            "raw values have no schema",
        ),
        (("--to", "a.b", "--buckets", "10001"), "from 1 to 10000"),
    ],
)
def test_what_is_wrong_is_one_line(data: str, more: tuple[str, ...], told: str) -> None:
    failed = run("orders", "--dir", data, *more)
    assert failed.exit_code == 1, failed.output
    assert told in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1
    assert not Path(f"{data}.tables").exists()


def test_a_damaged_catalog_is_nothing_for_varve_check(data: str) -> None:
    catalog = Path(f"{data}.tables/catalog.db")
    catalog.parent.mkdir()
    catalog.write_bytes(b"this is no database at all" * 100)
    failed = run("orders", "--dir", data, "--to", "a.b")
    assert (failed.exit_code, "restore it from a copy" in failed.stderr) == (1, True)
    assert "varve check" not in failed.stderr
    assert f" file://{catalog.parent}:" in failed.stderr


def test_a_catalog_that_is_missing_is_not_created(tmp_path: Path) -> None:
    words = ["table", "expire", "a.b", "--older-than", "1d", "--yes"]
    failed = CliRunner().invoke(app, [*words, "--warehouse", str(tmp_path / "none")])
    assert failed.exit_code == 1
    assert "catalog.db is missing" in failed.stderr
    assert not (tmp_path / "none").exists()
    unnamed = CliRunner().invoke(app, words)
    assert "--warehouse, --catalog" in unnamed.stderr


def test_old_snapshots_of_a_table_expire(tmp_path: Path) -> None:
    bench = TableBench(tmp_path)
    for number in range(2):
        bench.topic.put((f"k{number}", "x"))
        bench.sync()
    bench.close()
    warehouse = str(tmp_path / "tables")
    done = CliRunner().invoke(
        app,
        [
            "table",
            "expire",
            TABLE,
            "--warehouse",
            warehouse,
            "--older-than",
            "0s",
            "--yes",
            "--json",
        ],
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told == {"type": "expiry", "table": TABLE, "snapshots": 1, "kept": 1, "removed": 1}
