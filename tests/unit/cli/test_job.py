"""`varve job` as far as it needs no Spark: what it refuses, what a read would cost."""

import json
from functools import partial
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import run_varve
from varve.cli import options
from varve.foundation.errors import Unavailable
from varve.foundation.settings import GivenValue
from varve.spark import session
from varve.spark.java import Java
from varve.spark.topic_query import position_options

run = partial(run_varve, "job", COLUMNS="200")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of twenty records, ten of them in the cold tier."""
    path = tmp_path_factory.mktemp("job")
    settings: dict[str, GivenValue] = {"remote.storage.enable": True, "cleanup.policy": "compact"}
    with varve.open(path / "data", maintain=False) as store:
        topic = store.create_topic("orders", settings=settings)
        for number in range(10):
            topic.append(key=f"k{number}", value=f"value {number}")
    run_varve("tier", "copy", "-d", path / "data", "--roll")
    with varve.open(path / "data", maintain=False) as store:
        for number in range(10):
            store.topic("orders").append(key=f"k{number}", value=f"newer {number}")
    return path


def test_the_estimate_tells_what_both_tiers_give(place: Path) -> None:
    both = run("query", "orders", "--dir", str(place / "data"), "--estimate", "--json")
    document = json.loads(both.stdout)
    assert (document["partitions"], document["segments"]) == (1, 1)
    assert document["cold_bytes"] > 0
    assert document["hot_bytes"] > 0
    assert document["requests"] > 0
    remote = run(
        "query", "orders", "--store", f"file:{place / 'data.cold'}", "--estimate", "--json"
    )
    assert json.loads(remote.stdout)["hot_bytes"] == 0
    table = run("query", "orders", "--dir", str(place / "data"), "--estimate")
    assert "from the object store" in table.stdout


def test_positions_of_a_range_become_options_of_the_source() -> None:
    def option(text: str) -> dict[str, str]:
        return position_options("starting", options.POSITIONS.convert(text, None, None))

    assert option("beginning") == {"startingOffset": "earliest"}
    assert option("end") == {"startingOffset": "latest"}
    assert option("17") == {"startingOffset": "17"}
    assert option("1970-01-02") == {"startingTimestamp": "86400000"}
    assert option("@5") == {"startingTimestamp": "5"}
    assert option('{"0": 5, "3": 7}') == {"startingOffset": '{"0": 5, "3": 7}'}
    assert position_options("ending", None) == {}


def test_the_estimate_is_of_the_range(place: Path) -> None:
    data = str(place / "data")
    whole = run("query", "orders", "--dir", data, "--estimate", "--json")
    part = run("query", "orders", "--dir", data, "--from", "10", "--estimate", "--json")
    assert json.loads(part.stdout)["cold_bytes"] == 0
    assert json.loads(whole.stdout)["type"] == "estimate"


def test_the_store_of_a_directory_beats_the_environment_and_a_flag_beats_both(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARVE_TIER_URL", "file:/nowhere")
    words = ("query", "orders", "--estimate", "--json")
    beside = run(*words, "--dir", str(place / "data"))
    assert json.loads(beside.stdout)["cold_bytes"] > 0
    monkeypatch.setenv("VARVE_DIR", "/nowhere")
    explicit = run(*words, "--store", f"file:{place / 'data.cold'}")
    assert json.loads(explicit.stdout)["hot_bytes"] == 0


def test_without_java_a_query_is_one_line_and_leaves_no_log(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Java:
        raise Unavailable("Spark needs Java")

    # Another test of this process may have left a session, which would be used without a Java.
    monkeypatch.setattr(session, "_find_live_session", lambda master: None)
    monkeypatch.setattr("varve.spark.java.get_java", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = run("query", "orders", "--dir", str(place / "data"), code=1)
    assert found.stderr == "error: Spark needs Java\n"
    assert list(tmp_path.iterdir()) == []
