"""`varve job snapshot` in a session: taken, taken further, listed, verified, read by Spark."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

import varve
from tests.support.spark_session import spark as spark
from varve.cli.main import app
from varve.foundation.settings import GivenValue
from varve.jobs.snapshot.snapshot import SnapshotSettings, take_snapshot
from varve.jobs.snapshot.store import open_snapshot
from varve.jobs.tier.bucket import Bucket, find_cluster, find_topic
from varve.spark.runner import SparkRunner
from varve.topics.outputs import OutputKind, RemoteOutputRegistry

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TOPIC: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "cleanup.policy": "compact",
    "segment.bytes": 4096,
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["job", "snapshot", *arguments])


def fill(data: str, first: int, count: int) -> None:
    with varve.open(data, maintain=False) as store:
        if first == 0:
            store.create_topic("state", partitions=2, settings=TOPIC)
        topic = store.topic("state")
        for number in range(first, first + count):
            value = None if number % 50 == 7 else f"value {number}"
            topic.append(key=f"k{number % 60}", value=value, partition=number % 2)


def state_of(data: str) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    with varve.open(data, maintain=False) as store:
        for record in store.topic("state").read():
            assert record.key is not None
            if record.value is None:
                state.pop(record.key, None)
            else:
                state[record.key] = record.value
    return state


def test_a_snapshot_is_taken_and_taken_further(spark: SparkSession, tmp_path: Path) -> None:
    data, place = str(tmp_path / "data"), str(tmp_path / "place")
    fill(data, 0, 400)
    assert CliRunner().invoke(app, ["tier", "copy", "-d", data, "--roll"]).exit_code == 0
    fill(data, 400, 30)
    first = run("state", "--dir", data, "--to", place, "--buckets", "4", "--json")
    assert first.exit_code == 0, first.stderr
    taken, report = map(json.loads, first.stdout.splitlines())
    assert (taken["type"], report["type"]) == ("snapshot", "report")
    assert [one["resume_offset"] for one in taken["partitions"]] == [215, 215]
    snapshot = open_snapshot(place)
    rows = {row["key"]: row["value"] for row in snapshot.read().to_pylist()}
    assert rows == state_of(data)
    assert spark.read.parquet(*snapshot.paths).count() == taken["rows"] == len(rows)

    again = run("state", "--dir", data, "--to", place)
    assert again.exit_code == 0, again.stderr
    assert "existed already" in " ".join(again.stdout.split())
    fill(data, 430, 3)
    second = run("state", "--dir", data, "--to", place, "--keep", "1")
    assert second.exit_code == 0, second.stderr
    assert "continues from 1" in " ".join(second.stdout.split())
    assert "removed" in second.stdout
    listed = CliRunner().invoke(app, ["snapshot", "list", place, "--json"])
    assert [json.loads(line)["snapshot"] for line in listed.stdout.splitlines()] == [2]
    found = {row["key"]: row["value"] for row in open_snapshot(place).read().to_pylist()}
    assert found == state_of(data)


def test_executors_give_what_one_process_gives(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    fill(data, 0, 600)
    assert CliRunner().invoke(app, ["tier", "copy", "-d", data, "--roll"]).exit_code == 0
    address = Bucket(f"file:{data}.cold")
    settings = SnapshotSettings(buckets=2, split_bytes=10_000, range_bytes=4 << 10)
    result = take_snapshot(
        "state",
        str(tmp_path / "place"),
        address=address,
        settings=settings,
        runner=SparkRunner(spark, here_bytes=0),
    )
    assert {row["key"]: row["value"] for row in open_snapshot(result.place).read().to_pylist()} == (
        state_of(data)
    )
    topic = find_topic(address, "state")
    (output,) = RemoteOutputRegistry(address.objects(), find_cluster(address)).find(
        "state", topic.topic_id
    )
    assert (output.kind, output.place) == (OutputKind.SNAPSHOT, result.place)
    frame = spark.read.format("varve").options(
        url=address.url, topic="state", mode="latest", splitBytes="500"
    )
    assert frame.load().count() == result.rows
    assert frame.load().rdd.getNumPartitions() > 2


def test_what_cannot_be_is_one_line_and_verify_tells_damage(tmp_path: Path) -> None:
    data, place = str(tmp_path / "data"), tmp_path / "place"
    fill(data, 0, 20)
    missing = run("nothing", "--dir", data, "--to", str(place))
    assert missing.exit_code == 1
    assert missing.stderr.count("\n") == 1, missing.stderr
    inside = run("state", "--dir", data, "--to", f"{data}/place")
    assert inside.exit_code == 1
    assert "overlap" in inside.stderr
    assert run("state", "--dir", data).exit_code == 2
    done = run("state", "--dir", data, "--to", str(place), "--at", '{"0": 3, "1": 4}')
    assert done.exit_code == 0, done.stderr
    assert open_snapshot(str(place)).resume_offsets == {0: 3, 1: 4}
    verify = ["snapshot", "verify", str(place)]
    assert CliRunner().invoke(app, verify).exit_code == 0
    next((place / "data").iterdir()).write_bytes(b"damage")
    verified = CliRunner().invoke(app, verify)
    assert verified.exit_code == 1
    assert "1 damaged or missing" in verified.stdout
