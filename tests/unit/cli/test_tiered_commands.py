"""The commands on a directory whose topics are in the cold tier."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import varve
from varve.cli.main import app
from varve.foundation.settings import GivenValue

TIERED: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "segment.bytes": 1000,
    "local.retention.bytes": 2000,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything is copied, nothing has left the local disk, and half of `orders` may expire."""
    place = tmp_path_factory.mktemp("made")
    with varve.open(place / "data", maintain=False) as store:
        orders = store.create_topic("orders", settings={**TIERED, "retention.bytes": 4000})
        scores = store.create_topic("scores", settings={**TIERED, "cleanup.policy": "compact"})
        store.create_topic("plain").append(value="a")
        for number in range(60):
            orders.append(value=f"{number:080}")
            scores.append(key=f"k{number}", value=f"{number:080}")
        for one in store.partitions():
            if store.topic(one.topic).settings.copies_to_tier:
                assert store.tier.copy(one, 0).error is None
    return place


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy to be changed, with a cold tier of its own."""
    shutil.copytree(made, tmp_path / "made")
    path = tmp_path / "made" / "data"
    place = json.loads((path / "varve-tier.json").read_text())
    place["url"] = f"file:{path}.cold"
    (path / "varve-tier.json").write_text(json.dumps(place))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_clean_foresees_and_tells_what_leaves_the_local_disk_and_what_expires(data: Path) -> None:
    (foreseen,) = lines(run("clean", data, "orders", "--dry-run", "--json"))
    text = run("clean", data, "orders", "--dry-run").stdout
    (done,) = lines(run("clean", data, "orders", "--json"))
    assert foreseen == {**done, "dry_run": True}
    tier = done["tier"]
    assert tier["moved"][0]["base_offset"] == tier["expired"][0]["base_offset"] == 0
    assert "local.retention" in tier["moved"][0]["rule"]
    assert tier["expired"][0]["reason"] == "beyond retention.bytes"
    assert "would be let go by the local disk" in text
    assert "of the cold tier would be expired" in text
    with varve.open(data, maintain=False) as store:
        offsets = store.topic("orders").partition(0).offsets()
    assert offsets.log_start == tier["expired"][-1]["next_offset"]
    assert offsets.local_start == tier["moved"][-1]["next_offset"]
    assert (done["expiry"], lines(run("clean", data, "plain", "--json"))[0]["tier"]) == (None, None)


def test_a_check_of_both_tiers_finds_nothing_wrong_with_what_is_well(data: Path) -> None:
    assert run("clean", data).exit_code == 0
    assert run("log", "read", "orders", "--dir", data, "--from", "30", "-n", "1").exit_code == 0
    found = run("check", "--deep", "--tier", data, data / "orders-0")
    assert found.exit_code == 0, found.output
    assert found.stdout.count("nothing found") == 2


def test_a_check_of_both_tiers_finds_nothing_wrong_when_the_local_log_is_empty(data: Path) -> None:
    with varve.open(data, maintain=False) as store:
        store.alter_topic("scores", {"local.retention.ms": 0, "local.retention.bytes": 0})
        log = store.topic("scores").partition(0).log
        log.roll()
        assert store.tier.copy(log.topic_partition, 0).error is None
    assert run("clean", data, "scores").exit_code == 0
    (row,) = lines(run("log", "offsets", "scores", "--dir", data, "--json"))
    assert row["local_start"] == row["end"] > row["log_start"]
    found = run("check", "--tier", data)
    assert found.exit_code == 0, found.output


def findings(*arguments: object) -> dict[str, str]:
    result = run("check", "--tier", "--json", *arguments)
    assert result.exit_code == 1, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return {one["rule"]: one["message"] for one in found}


def test_a_check_names_a_missing_object_a_hole_and_a_broken_tier_file(data: Path) -> None:
    assert run("clean", data).exit_code == 0
    remote = Path(f"{data}.cold")
    gone = next(path for path in sorted(remote.rglob("*/log")) if "scores" in str(path))
    gone.unlink()
    assert "is missing" in findings(data)["tier-object"]
    (data / "varve-tier.json").rename(data.parent / "tier.json")
    assert "neither on the local disk nor in the cold tier" in findings(data)["tier-hole"]
    (data.parent / "tier.json").rename(data / "varve-tier.json")
    shutil.rmtree(remote)
    assert "mount or put it back" in findings(data)["tier-unavailable"]
    (remote / ".varve-writing").mkdir(parents=True)
    assert "offsets 0 to " in findings(data, data / "scores-0")["tier-hole"]
    (data / "varve-tier.json").write_text("{")
    assert "does not say where" in findings(data)["tier-file"]


def test_a_topic_whose_settings_are_lost_is_read_from_both_tiers_and_told_of(data: Path) -> None:
    assert run("clean", data, "scores").exit_code == 0
    (data / "varve-topics.json").unlink()
    assert "settings of scores are lost" in findings(data)["topics-lost"]
    found = run("log", "read", "scores", "--dir", data)
    assert (found.exit_code, len(found.stdout.splitlines())) == (0, 60)
    assert "log configure scores remote.storage.enable=true" in found.stderr
    assert run("get", data, "scores", "k0").exit_code == 0
    (row,) = lines(run("log", "offsets", "scores", "--dir", data, "--json"))
    assert row["log_start"] == 0 < row["local_start"]
    refused = run("log", "configure", "scores", "--dir", data, "retention.ms=1")
    assert refused.exit_code == 1
    assert "remote.storage.enable=true" in refused.stderr
    assert run("clean", data, "scores").exit_code == 0
    given = ("remote.storage.enable=true", "cleanup.policy=compact", "local.retention.bytes=2000")
    done = run("log", "configure", "scores", "--dir", data, *given)
    assert done.exit_code == 0, done.output
    again = run("log", "read", "scores", "--dir", data)
    assert (len(again.stdout.splitlines()), again.stderr) == (60, "")
    assert run("check", "--tier", data).exit_code == 0


def test_no_new_cluster_is_made_up_for_logs_that_have_a_tier(data: Path) -> None:
    assert run("clean", data, "scores").exit_code == 0
    meta = data / "meta.properties"
    (cluster,) = [line for line in meta.read_text().splitlines() if "cluster.id" in line]
    meta.unlink()
    refused = run("log", "read", "scores", "--dir", data)
    assert (refused.exit_code, meta.exists()) == (1, False)
    assert f"the folder at the top of file:{data}.cold" in refused.stderr
    assert cluster.partition("=")[2] in [path.name for path in Path(f"{data}.cold").iterdir()]
    meta.write_text(f"version=1\nnode.id=1\n{cluster}\n")
    found = run("log", "read", "scores", "--dir", data)
    assert (found.exit_code, len(found.stdout.splitlines())) == (0, 60), found.stderr


def test_nothing_is_copied_before_the_place_of_the_tier_was_named(tmp_path: Path) -> None:
    data, bucket = tmp_path / "data", f"file:{tmp_path}/bucket"
    given = ("--set", "remote.storage.enable=true", "--set", "segment.bytes=1000")
    assert run("log", "create", "t", "--dir", data, *given).exit_code == 0
    text = "".join(f"{number:080}\n" for number in range(60))
    for _ in range(2):
        append = ["log", "append", "t", "--dir", str(data), "--codec", "none"]
        done = CliRunner().invoke(app, append, input=text)
        assert done.exit_code == 0, done.output
        assert "t is not copied yet" in done.stderr
    assert run("log", "delete-records", "t", "--dir", data, "--before", 1).exit_code == 0
    assert not (data / "varve-tier.json").exists()
    assert not [path for path in Path(f"{data}.cold").rglob("*") if path.is_file()]
    assert run("tier", "copy", data, "--store", bucket).exit_code == 0
    again = CliRunner().invoke(app, append, input=text)
    assert "not copied yet" not in again.stderr


def test_reads_of_a_tier_that_lost_an_object_fail_with_its_name(data: Path) -> None:
    assert run("clean", data).exit_code == 0
    for path in Path(f"{data}.cold").rglob("*/log"):
        if "scores" in str(path):
            path.unlink()
    found = run("log", "read", "scores", "--dir", data)
    assert found.exit_code == 1
    assert "the newest manifest names an object that is not there" in found.stderr


def test_an_audit_tells_what_moved_and_with_tier_what_went_from_the_bucket(data: Path) -> None:
    assert run("clean", data).exit_code == 0
    assert "moved to object storage, of which --tier tells more" in run("audit", data).stdout
    (row,) = lines(run("log", "offsets", "orders", "--dir", data, "--json"))
    found = lines(run("audit", data, "orders", "--tier", "--json"))
    (removal,) = [one for one in found if one["type"] == "cold_removal"]
    assert removal["is_done"]
    assert sum(removal["records"].values()) == row["log_start"] > 0
    text = run("audit", data, "--tier").stdout
    gone = f"1 removal on record, {row['log_start']} records removed"
    assert f"orders-0 in object storage: {gone}" in text
    assert "scores-0 in object storage: 0 removals on record" in text
    assert "plain-0 in object storage" not in text
    leave = ("remote.storage.enable=false", "remote.log.delete.on.disable=true")
    assert run("log", "configure", "orders", "--dir", data, *leave).exit_code == 0
    assert "nothing is there: it left the tier" in run("audit", data, "orders", "--tier").stdout


def test_offsets_show_where_the_local_part_begins(data: Path) -> None:
    assert run("clean", data).exit_code == 0
    (row,) = lines(run("log", "offsets", "orders", "--dir", data, "--json"))
    assert row["log_start"] < row["local_start"] < row["end"]
    (plain,) = lines(run("log", "offsets", "plain", "--dir", data, "--json"))
    assert plain["local_start"] == plain["log_start"]


def test_explain_and_forecast_print_both_tiers(data: Path) -> None:
    assert run("clean", data).exit_code == 0
    text = run("explain", data, "orders").stdout
    for place in ("leaving", "cold", "both", "local"):
        assert f"  {place}\n" in text
    assert "in object storage alone" in run("explain", data, "scores", "--offset", 0).stdout
    shown = run("forecast", data).stdout
    assert "cold tier" in shown
    assert "in the cold tier at" in shown
    tried = ("--set", "remote.storage.enable=true", "--set", "local.retention.ms=1000")
    (found,) = lines(run("forecast", data, "plain", *tried, "--json"))
    assert found["cold"]["rows"][0]["place"] == "local"


def test_metrics_have_the_figures_of_the_tier(data: Path) -> None:
    found = run("metrics", data)
    assert found.exit_code == 0, found.output
    assert 'varve_tier_segments{partition="0",topic="orders"}' in found.stdout


def test_who_follows_reads_the_remote_part_first_while_another_has_the_store_open(
    data: Path,
) -> None:
    assert run("clean", data).exit_code == 0
    with varve.open(data, maintain=False) as store:
        marks = store.topic("orders").partition(0).offsets()
        count = marks.end - marks.log_start
        follow = ("log", "read", "orders", "--dir", data, "--follow", "--json")
        found = lines(run(*follow, "--count", count))
        some = lines(run(*follow, "--from", marks.local_start - 2, "--count", 4))
        timed = lines(run(*follow, "--from", "@0", "--count", 3))
    assert [record["offset"] for record in found] == list(range(marks.log_start, marks.end))
    assert [record["offset"] - marks.local_start for record in some] == [-2, -1, 0, 1]
    assert [record["offset"] for record in timed] == list(
        range(marks.log_start, marks.log_start + 3)
    )
    early = run(*follow, "--from", marks.log_start - 1)
    assert early.exit_code == 1
    assert "before the log start offset" in early.stderr
