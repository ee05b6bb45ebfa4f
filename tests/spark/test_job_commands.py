"""Commands of `varve job` in a session, each from a topic to what people see of it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import varve
from tests.support.spark_session import spark as spark
from varve.cli.job_demo import ERASED_KEY, Customers
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


def run(*arguments: str, exit_code: int = 0) -> Result:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == exit_code, done.output
    return done


def find_files(root: Path, text: bytes) -> list[str]:
    return [str(path) for path in root.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_what_is_superseded_goes_and_a_second_run_finds_nothing(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with varve.open(data, maintain=False) as store:
        topic = store.create_topic("state", settings=TOPIC)
        for number in range(400):
            topic.append(key=f"k{number % 10}", value=f"value {number}")
    run("tier", "copy", "-d", data, "--roll")
    done = run("job", "compact", "--dir", data, "--json", "--report", str(tmp_path / "report"))
    partition, report = map(json.loads, done.stdout.splitlines())
    assert (partition["type"], partition["topic"], report["type"]) == (
        "partition",
        "state",
        "report",
    )
    assert partition["segments_after"] < partition["segments_before"]
    assert partition["bytes_after"] < partition["bytes_before"] / 4
    assert partition["records"]["superseded"] > 300
    assert json.loads((tmp_path / "report").read_text())["job"] == "compact"
    assert [step["name"] for step in report["steps"]] == ["index", "plan", "segments", "rewrite"]
    assert report["store"]["written_bytes"] > 0
    run("tier", "fsck", "--dir", data, "--deep")
    assert "removed" not in run("job", "compact", "--dir", data).stdout
    with varve.open(data, maintain=False) as store:
        found = store.topic("state").get("k7")
        assert found is not None
        assert (found.offset, found.value) == (397, b"value 397")


def test_a_damaged_object_of_a_tier_is_named_and_nothing_else(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with varve.open(data, maintain=False) as store:
        for name in ("state", "plain"):
            policy = "compact" if name == "state" else "delete"
            topic = store.create_topic(name, settings={**TOPIC, "cleanup.policy": policy})
            for number in range(300):
                topic.append(key=f"k{number % 10}", value=f"value {number}")
    run("tier", "copy", "-d", data, "--roll")
    log = sorted((tmp_path / "data.cold").rglob("*/log"))[1]
    log.write_bytes(log.read_bytes()[:-1] + b"~")
    page = tmp_path / "page.html"
    done = run("job", "verify", "--dir", data, "--json", "--page", str(page), exit_code=1)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["type"] for one in lines] == ["partition", "partition", "finding", "report"]
    assert sum(one["records"] for one in lines[:2]) == 600
    assert lines[2]["rule"] == "object-checksum"
    assert lines[2]["where"].endswith("/log")
    assert lines[-1]["verified_bytes"] > 10_000
    assert "Damage was found" in page.read_text()


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


def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    directory = str(tmp_path / "story")
    arguments = ["job", "demo", "--dir", directory, "--records", "20000", "--json"]
    lines = list(map(json.loads, run(*arguments).stdout.splitlines()))
    steps = {line["step"]: line for line in lines}
    customers = Customers(20_000)
    assert len(list(customers.changes)) == 20_000
    assert steps["table"]["rows"] == len(customers.state)
    assert steps["bootstrap"]["replayed"] > 0
    assert steps["compact"]["bytes_after"] < steps["compact"]["bytes_before"]
    assert steps["erase"]["records"] > 0
    assert steps["erase"]["left"] == 0
    assert steps["verify"]["verified_bytes"] > 0
    assert ERASED_KEY not in Path(f"{directory}.receipt.html").read_text()
    assert "exists already" in run(*arguments, exit_code=1).stderr
