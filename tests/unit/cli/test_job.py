"""`varve job` as far as it needs no Spark: what it refuses, what a read would cost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import varve
from varve.cli import options
from varve.cli.main import app
from varve.foundation.errors import Unavailable
from varve.foundation.settings import GivenValue
from varve.spark import session
from varve.spark.java import Java
from varve.spark.topic_query import position_options


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["job", *arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of twenty records, ten of them in the cold tier."""
    path = tmp_path_factory.mktemp("job")
    settings: dict[str, GivenValue] = {"remote.storage.enable": True, "cleanup.policy": "compact"}
    with varve.open(path / "data", maintain=False) as store:
        topic = store.create_topic("orders", settings=settings)
        for number in range(10):
            topic.append(key=f"k{number}", value=f"value {number}")
    assert (
        CliRunner().invoke(app, ["tier", "copy", "-d", str(path / "data"), "--roll"]).exit_code == 0
    )
    with varve.open(path / "data", maintain=False) as store:
        for number in range(10):
            store.topic("orders").append(key=f"k{number}", value=f"newer {number}")
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "parquet"), "--format parquet needs --output"),
        (("--output", "x"), "--output needs --format json, csv or parquet"),
        (("--json", "--format", "csv"), "are two formats"),
        (("--sql", "SELECT 1", "--where", "true"), "--sql is a whole statement"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    place: Path, arguments: tuple[str, ...], message: str
) -> None:
    found = run("query", "orders", "--dir", str(place / "data"), *arguments)
    assert found.exit_code == 2
    assert message in found.stderr


def test_a_tier_must_be_named() -> None:
    found = run("query", "orders")
    assert found.exit_code == 2
    assert "--store" in found.stderr
    assert "--dir" in found.stderr


def test_what_the_source_would_refuse_is_refused_before_spark_starts(place: Path) -> None:
    data = str(place / "data")
    wrong = run("query", "orders", "--dir", data, "--from", "x")
    assert wrong.exit_code == 2
    assert "is not a position" in wrong.stderr
    torn = run("query", "orders", "--dir", data, "--to", '{"0": "x"}')
    assert torn.exit_code == 2
    assert "is not a table of offsets by partition" in torn.stderr
    unknown = run("query", "orders", "--dir", data, "--option", "no.such=1")
    assert "no.such" in unknown.stderr


def test_the_estimate_tells_what_both_tiers_give(place: Path) -> None:
    both = run("query", "orders", "--dir", str(place / "data"), "--estimate", "--json")
    assert both.exit_code == 0, both.stderr
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


def test_a_deduplication_takes_before_and_after_without_a_window() -> None:
    words = ("dedup", "in", "--to", "out", "--by", "key", "--checkpoint", "c", "--store", "file:/s")
    both = run(*words, "--before", "1h", "--after", "1m")
    assert "is missing: the log directory of the output topic" in both.stderr
    half = run(*words, "--before", "1h")
    assert "--window is missing" in half.stderr


def test_jobs_at_intervals_are_those_of_one_directory(place: Path) -> None:
    data = str(place / "data")
    refused = run("due", "--dir", data, "--dir", str(place))
    assert refused.exit_code == 2
    assert "give one --dir" in refused.stderr


def test_a_topic_that_is_not_there_is_named(place: Path) -> None:
    found = run("query", "nope", "--store", f"file:{place / 'data.cold'}", "--estimate")
    assert found.exit_code == 1
    assert "orders" in found.stderr


@pytest.mark.parametrize("arguments", [["query", "orders", "--estimate"], ["compact"], ["verify"]])
def test_a_directory_that_is_not_there_is_named(tmp_path: Path, arguments: list[str]) -> None:
    outcome = run(*arguments, "--dir", str(tmp_path / "nope"))
    assert outcome.exit_code == 1
    assert f"log directory {tmp_path / 'nope'} does not exist" in outcome.stderr.replace("\n", " ")


def test_without_java_a_query_is_one_line_and_leaves_no_log(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Java:
        raise Unavailable("Spark needs Java")

    # Another test of this process may have left a session, which would be used without a Java.
    monkeypatch.setattr(session, "_find_live_session", lambda master: None)
    monkeypatch.setattr("varve.spark.java.get_java", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = run("query", "orders", "--dir", str(place / "data"))
    assert found.exit_code == 1
    assert found.stderr == "error: Spark needs Java\n"
    assert list(tmp_path.iterdir()) == []


def test_the_commands_are_listed_without_spark() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from varve.cli.main import app\n"
        "for asked in sys.argv[1:]:\n"
        "    found = CliRunner().invoke(app, asked)\n"
        "    assert found.exit_code == 0, found.output\n"
        "    assert 'pyspark' not in sys.modules, asked\n"
    )
    asked = ("--help", "job --help", "job query --help")
    subprocess.run([sys.executable, "-c", script, *asked], check=True)
