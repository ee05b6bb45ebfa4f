"""`varve job compact` without Spark: which topics, with which settings, what is shown."""

from functools import partial
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import run_varve
from varve.cleaning.removals.removal import Reason
from varve.cli.job import print_compactions
from varve.cli.output import Output
from varve.foundation.errors import InvalidRequest, InvalidSetting, NotFound
from varve.jobs.compact.job import choose_topics
from varve.jobs.compact.result import PartitionResult
from varve.tiering.manifest.paths import RemotePath

run = partial(run_varve, "job", "compact")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("compact") / "data"
    with varve.open(path, maintain=False) as store:
        tiered = {"remote.storage.enable": "true"}
        compacted = {"cleanup.policy": "compact", "min.compaction.lag.ms": "5"}
        store.create_topic("state", settings={**tiered, **compacted})
        store.create_topic("events", settings=tiered)
        store.create_topic("local", settings=compacted)
    return str(path)


def test_all_compacted_topics_of_the_tier_are_meant_where_none_is_named(data: str) -> None:
    chosen = choose_topics([], [data], {})
    assert {name: one.min_compaction_lag_ms for name, one in chosen.items()} == {"state": 5}


def test_a_setting_given_outranks_that_of_the_directory(data: str) -> None:
    given = {"min.compaction.lag.ms": "7"}
    assert choose_topics(["state"], [data], given)["state"].is_compacted
    assert choose_topics([], [data], given)["state"].min_compaction_lag_ms == 7
    with pytest.raises(InvalidSetting, match=r"no\.such"):
        choose_topics([], [data], {"no.such": "1"})


def test_without_a_directory_topics_are_named_and_their_policy_is_compact() -> None:
    assert choose_topics(["any"], [], {})["any"].is_compacted
    with pytest.raises(InvalidRequest, match=r"name the topics, or a log directory with --dir"):
        choose_topics([], [], {})


def test_a_topic_that_is_not_there_or_not_compacted_is_refused(data: str) -> None:
    with pytest.raises(NotFound, match=r"no topic 'nope' \(topics: events, local, state\)"):
        choose_topics(["nope"], [data], {})
    found = run("events", "--dir", data, "--store", "file:/nowhere", code=1)
    assert "cleanup.policy is delete" in found.told


def test_the_newest_table_of_several_directories_counts(tmp_path: Path) -> None:
    disks = [str(tmp_path / "d1"), str(tmp_path / "d2")]
    compacted = {"remote.storage.enable": "true", "cleanup.policy": "compact"}
    with varve.open(disks, maintain=False) as store:
        store.create_topic("state", settings=compacted)
    older = (Path(disks[0]) / "varve-topics.json").read_bytes()
    with varve.open(disks, maintain=False) as store:
        store.create_topic("second", settings=compacted)
        store.create_topic("third", settings={**compacted, "segment.bytes": "100000"})
    (Path(disks[0]) / "varve-topics.json").write_bytes(older)
    chosen = choose_topics([], disks, {})
    assert set(chosen) == {"state", "second", "third"}
    assert chosen["third"].segment_bytes == 100_000


def test_a_directory_without_any_is_told(tmp_path: Path) -> None:
    found = run("--dir", str(tmp_path), "--store", "file:/nowhere", code=1)
    assert "has no compacted topic" in found.stderr


def test_partitions_are_shown_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    print_compactions(
        [
            PartitionResult(
                path=RemotePath("c", "state", "id", 3),
                segments_before=8,
                segments_after=1,
                bytes_before=4096,
                bytes_after=1024,
                records={Reason.KEPT: 10, Reason.SUPERSEDED: 30, Reason.NO_KEY: 0},
                bytes={Reason.SUPERSEDED: 3000},
                held=[70],
                note="40% stale, below min.cleanable.dirty.ratio",
                error="the store is down",
            )
        ],
        Output(),
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(lines[1]) == "state-3 8 1 4.0 KiB 1.0 KiB 75% 40 10"
    assert " ".join(lines[2]) == "removed 30 records, 2.9 KiB: superseded"
    assert " ".join(lines[3]) == "damaged segments held at base offsets 70"
    assert [line[0] for line in lines[4:]] == ["note", "failed"]
