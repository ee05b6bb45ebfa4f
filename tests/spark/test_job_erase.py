"""`varve job erase` in a session: hot, cold, a snapshot and a table, from a key to its receipt."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import varve
from tests.support.spark_session import spark as spark
from varve.cli.main import app
from varve.foundation.settings import GivenValue
from varve.jobs.snapshot.store import open_snapshot

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("spark"),
]

TOPIC: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "cleanup.policy": "compact",
    "segment.bytes": 4096,
}


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.output
    return done


def find_files(root: Path, text: bytes) -> list[str]:
    return [str(one) for one in root.rglob("*") if one.is_file() and text in one.read_bytes()]


def test_a_person_leaves_the_log_the_bucket_and_every_copy(tmp_path: Path) -> None:
    data, place = str(tmp_path / "data"), str(tmp_path / "place")
    with varve.open(data, maintain=False) as store:
        topic = store.create_topic("people", partitions=2, settings=TOPIC)
        for number in range(300):
            value = {"email": f"person-{number % 30}@x", "n": number}
            topic.append(key=f"key-{number % 30}", value=json.dumps(value))
    run("tier", "copy", "-d", data, "--roll")
    run("job", "snapshot", "people", "--dir", data, "--to", place)
    run("job", "table", "people", "--to", "shop.people", "--format", "json", "--dir", data)
    assert find_files(tmp_path, b"person-7@x")

    dry = run("job", "erase", "people", "--dir", data, "--key", "key-7", "--dry-run", "--json")
    told = [json.loads(line) for line in dry.stdout.splitlines()]
    assert sum(one["records"] for one in told if one["type"] == "partition") == 20
    (erasure,) = [one for one in told if one["type"] == "erasure"]
    assert len(erasure["outputs"]) == 2
    assert erasure["receipt"] is None

    out = str(tmp_path / "receipt")
    done = run("job", "erase", "people", "--dir", data, "--key", "key-7", "--yes", "--receipt", out)
    assert "none found" in " ".join(done.stdout.split())
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    (topic_told,) = receipt["topics"]
    assert receipt["records"] == 20
    assert [one["rows"] for one in topic_told["outputs"]] == [1, 10]
    assert receipt["rescan"]["outputs"] == 2
    assert find_files(tmp_path, b"person-7@x") == []
    assert find_files(tmp_path, b"key-7") == []
    rows = open_snapshot(place).read().to_pylist()
    assert len(rows) == 29
    run("tier", "fsck", "--dir", data, "--deep")
    run("check", "-d", data)
    with varve.open(data, maintain=False) as store:
        assert store.topic("people").get("key-7") is None
        assert len(list(store.topic("people").read())) == 290
