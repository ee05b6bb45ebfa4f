"""A verification of a whole tier with its log directory, in this process."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import varve
from varve.cli.main import app
from varve.commit_log.check.findings import Severity
from varve.foundation.errors import NotFound
from varve.jobs.tasks import LocalRunner
from varve.jobs.tier.bucket import Bucket
from varve.jobs.verify.result import VerifyResult
from varve.jobs.verify.verification import verify


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two topics, one of them compacted, copied as a whole."""
    path = tmp_path / "data"
    with varve.open(str(path), maintain=False) as store:
        for name, policy in (("state", "compact"), ("plain", "delete")):
            topic = store.create_topic(
                name,
                settings={
                    "remote.storage.enable": True,
                    "cleanup.policy": policy,
                    "segment.bytes": 2000,
                },
            )
            for number in range(60):
                topic.append(key=f"k{number % 7}", value=f"value {number}")
    assert CliRunner().invoke(app, ["tier", "copy", "-d", str(path), "--roll"]).exit_code == 0
    return path


def run(data: Path, *topics: str) -> VerifyResult:
    address = Bucket(f"file:{data}.cold")
    return verify(address, topics, runner=LocalRunner(), directories=[str(data)])


def test_a_healthy_tier_and_its_directory_have_no_findings(data: Path) -> None:
    result = run(data)
    assert result.findings == []
    assert not result.has_damage
    assert [one.partition.topic for one in result.partitions] == ["plain", "state"]
    assert sum(one.record_count for one in result.partitions) == 120
    assert result.verified_bytes > 0
    assert result.to_json()["has_damage"] is False


def test_chosen_topics_alone_are_verified(data: Path) -> None:
    assert [one.partition.topic for one in run(data, "state").partitions] == ["state"]
    with pytest.raises(NotFound, match="nothing"):
        run(data, "nothing")


def test_damage_of_the_local_directory_is_in_the_same_result(data: Path) -> None:
    log = next(path for path in sorted((data / "plain-0").glob("*.log")) if path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(bytes(content))
    result = run(data)
    assert result.has_damage
    (found,) = [one for one in result.others if one.is_damage]
    assert (found.rule, found.where) == ("batch-crc", str(log))


def test_a_directory_that_a_store_has_open_is_left_alone_with_a_note(data: Path) -> None:
    with varve.open(str(data), maintain=False):
        result = run(data)
    assert [(one.rule, one.severity) for one in result.findings] == [
        ("directory-in-use", Severity.NOTE)
    ]


def test_the_rules_are_listed() -> None:
    shown = CliRunner().invoke(app, ["job", "verify", "--list-rules"])
    assert shown.exit_code == 0
    assert "keys-twice" in shown.stdout
    assert "batch-crc" in shown.stdout
