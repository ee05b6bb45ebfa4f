"""The commands on a directory whose topics are in the cold tier."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

import varve
from tests.support.varve_command import run_varve as run
from varve.foundation.settings import GivenValue

TIERED: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "segment.bytes": 1000,
    "local.retention.bytes": 2000,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything is copied, nothing is in object storage alone, and half of `orders` may expire."""
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


def offsets(data: Path, topic: str) -> dict[str, Any]:
    """Those of the topic's only partition."""
    (described,) = run("topic", "describe", topic, "--dir", data, "--json").rows
    (partition,) = described["partitions"]
    return cast(dict[str, Any], partition)


def test_clean_foresees_and_tells_what_leaves_the_local_disk_and_what_expires(data: Path) -> None:
    (foreseen,) = run("clean", "-d", data, "orders", "--dry-run", "--json").rows
    text = run("clean", "-d", data, "orders", "--dry-run").stdout
    (done,) = run("clean", "-d", data, "orders", "--json").rows
    assert foreseen == {**done, "dry_run": True}
    tier = done["tier"]
    assert tier["moved"][0]["base_offset"] == tier["expired"][0]["base_offset"] == 0
    assert "local.retention" in tier["moved"][0]["rule"]
    assert tier["expired"][0]["reason"] == "beyond retention.bytes"
    assert "would be removed from the local disk" in text
    assert "of the remote tier would be expired" in text
    with varve.open(data, maintain=False) as store:
        offsets = store.topic("orders").partition(0).offsets()
    assert offsets.log_start == tier["expired"][-1]["next_offset"]
    assert offsets.local_start == tier["moved"][-1]["next_offset"]
    assert (done["expiry"], run("clean", "-d", data, "plain", "--json").rows[0]["tier"]) == (
        None,
        None,
    )


def test_a_check_of_both_tiers_finds_nothing_wrong_with_what_is_well(data: Path) -> None:
    run("clean", "-d", data)
    run("consume", "orders", "--dir", data, "--from", "30", "-n", "1")
    found = run("check", "--deep", "--tier", "-d", data, data / "orders-0")
    assert found.stdout.count("nothing found") == 2


def test_a_check_of_both_tiers_finds_nothing_wrong_when_the_local_log_is_empty(data: Path) -> None:
    with varve.open(data, maintain=False) as store:
        store.alter_topic("scores", {"local.retention.ms": 0, "local.retention.bytes": 0})
        log = store.topic("scores").partition(0).log
        log.roll()
        assert store.tier.copy(log.topic_partition, 0).error is None
    run("clean", "-d", data, "scores")
    row = offsets(data, "scores")
    assert row["local_start"] == row["end"] > row["log_start"]
    run("check", "--tier", "-d", data)


def findings(*arguments: object) -> dict[str, str]:
    found = run("check", "--tier", "--json", *arguments, code=1).rows
    return {one["rule"]: one["message"] for one in found}


def test_a_check_names_a_missing_object_a_hole_and_a_broken_tier_file(data: Path) -> None:
    run("clean", "-d", data)
    remote = Path(f"{data}.cold")
    gone = next(path for path in sorted(remote.rglob("*/log")) if "scores" in str(path))
    gone.unlink()
    assert "is missing" in findings("-d", data)["tier-object"]
    (data / "varve-tier.json").rename(data.parent / "tier.json")
    assert "neither on the local disk nor in the remote tier" in findings("-d", data)["tier-hole"]
    (data.parent / "tier.json").rename(data / "varve-tier.json")
    shutil.rmtree(remote)
    assert "mount or restore it" in findings("-d", data)["tier-unavailable"]
    (remote / ".varve-writing").mkdir(parents=True)
    assert "offsets 0 to " in findings("-d", data, data / "scores-0")["tier-hole"]
    (data / "varve-tier.json").write_text("{")
    assert "does not say where" in findings("-d", data)["tier-file"]


def test_a_topic_whose_settings_are_lost_is_read_from_both_tiers_and_told_of(data: Path) -> None:
    run("clean", "-d", data, "scores")
    (data / "varve-topics.json").unlink()
    assert "settings of scores are lost" in findings("-d", data)["topics-lost"]
    found = run("consume", "scores", "--dir", data)
    assert len(found.stdout.splitlines()) == 60
    assert "varve topic alter scores --set remote.storage.enable=true" in found.stderr
    run("get", "-d", data, "scores", "k0")
    row = offsets(data, "scores")
    assert row["log_start"] == 0 < row["local_start"]
    refused = run("topic", "alter", "scores", "--dir", data, "-s", "retention.ms=1", code=1)
    assert "remote.storage.enable=true" in refused.stderr
    run("clean", "-d", data, "scores")
    settings = (
        *("-s", "remote.storage.enable=true"),
        *("-s", "cleanup.policy=compact"),
        *("-s", "local.retention.bytes=2000"),
    )
    run("topic", "alter", "scores", "--dir", data, *settings)
    again = run("consume", "scores", "--dir", data)
    assert (len(again.stdout.splitlines()), again.stderr) == (60, "")
    run("check", "--tier", "-d", data)


def test_no_new_cluster_is_made_up_for_logs_that_have_a_tier(data: Path) -> None:
    run("clean", "-d", data, "scores")
    meta = data / "meta.properties"
    (cluster,) = [line for line in meta.read_text().splitlines() if "cluster.id" in line]
    meta.unlink()
    refused = run("consume", "scores", "--dir", data, code=1)
    assert not meta.exists()
    assert f"the folder at the top of file:{data}.cold" in refused.stderr
    assert cluster.partition("=")[2] in [path.name for path in Path(f"{data}.cold").iterdir()]
    meta.write_text(f"version=1\nnode.id=1\n{cluster}\n")
    found = run("consume", "scores", "--dir", data)
    assert len(found.stdout.splitlines()) == 60


def test_nothing_is_copied_before_the_place_of_the_tier_was_named(tmp_path: Path) -> None:
    data, bucket = tmp_path / "data", f"file:{tmp_path}/bucket"
    given = ("--set", "remote.storage.enable=true", "--set", "segment.bytes=1000")
    run("topic", "create", "t", "--dir", data, *given)
    text = "".join(f"{number:080}\n" for number in range(60))
    for _ in range(2):
        append = ("produce", "t", "--dir", data, "--codec", "none")
        done = run(*append, input=text)
        assert "t is not copied to object storage yet" in done.stderr
    delete = ("topic", "delete-records", "t", "--dir", data, "-p", 0)
    run(*delete, "--before", 1, "--yes")
    assert not (data / "varve-tier.json").exists()
    assert not [path for path in Path(f"{data}.cold").rglob("*") if path.is_file()]
    run("tier", "copy", "-d", data, "--store", bucket)
    again = run(*append, input=text)
    assert "not copied" not in again.stderr


def test_reads_of_a_tier_that_lost_an_object_fail_with_its_name(data: Path) -> None:
    run("clean", "-d", data)
    for path in Path(f"{data}.cold").rglob("*/log"):
        if "scores" in str(path):
            path.unlink()
    found = run("consume", "scores", "--dir", data, code=1)
    assert "the newest manifest names an object that is not there" in found.stderr


def test_an_audit_tells_what_moved_and_with_tier_what_went_from_the_bucket(data: Path) -> None:
    run("clean", "-d", data)
    assert "moved to the object store (see --tier)" in run("audit", "-d", data).stdout
    row = offsets(data, "orders")
    found = run("audit", "-d", data, "orders", "--tier", "--json").rows
    (removal,) = [one for one in found if one["type"] == "remote_removal"]
    assert removal["is_done"]
    assert sum(removal["records"].values()) == row["log_start"] > 0
    text = run("audit", "-d", data, "--tier").stdout
    gone = f"1 removal on record, {row['log_start']} records removed"
    assert f"orders-0 in the object store: {gone}" in text
    assert "scores-0 in the object store: 0 removals on record" in text
    assert "plain-0 in the object store" not in text
    leave = ("-s", "remote.storage.enable=false", "-s", "remote.log.delete.on.disable=true")
    run("topic", "alter", "orders", "--dir", data, *leave)
    assert (
        "nothing is there: it was removed from the tier"
        in run("audit", "-d", data, "orders", "--tier").stdout
    )


def test_offsets_show_where_the_local_part_begins(data: Path) -> None:
    run("clean", "-d", data)
    row = offsets(data, "orders")
    assert row["log_start"] < row["local_start"] < row["end"]
    plain = offsets(data, "plain")
    assert plain["local_start"] == plain["log_start"]


def test_explain_and_forecast_print_both_tiers(data: Path) -> None:
    run("clean", "-d", data)
    text = run("explain", "-d", data, "orders").stdout
    for place in ("leaving", "remote", "both", "local"):
        assert f"  {place}\n" in text
    assert "in object storage alone" in run("explain", "-d", data, "scores", "--offset", 0).stdout
    shown = run("forecast", "-d", data).stdout
    assert "remote tier" in shown
    assert "in the remote tier at" in shown
    tried = ("--set", "remote.storage.enable=true", "--set", "local.retention.ms=1000")
    (found,) = run("forecast", "-d", data, "plain", *tried, "--json").rows
    assert found["remote"]["rows"][0]["location"] == "local"


def test_metrics_have_the_figures_of_the_tier(data: Path) -> None:
    found = run("metrics", "-d", data)
    assert 'varve_tier_segments{partition="0",topic="orders"}' in found.stdout
