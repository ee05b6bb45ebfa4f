"""A real broker's directories, whole and damaged, are loaded as Apache Kafka loads them."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.tools.golden_reader import GOLDENS, latest_timestamp, recovery_cases
from tests.conformance.tools.our_log import (
    comparable,
    live_files,
    open_ours,
    report_ours,
    shorten,
    stray_snapshots,
)
from tests.conformance.tools.recovery import SAME, decode_damage, log_configs
from varve.commit_log.producer_snapshots import SnapshotEntry

Case = dict[str, Any]
Content = bytes | list[SnapshotEntry]


def _name(case: Case) -> str:
    damages = [f"{d['action']}-{d['amount']}-{d['file'].lstrip('0')}" for d in case["damages"]]
    return "/".join([case["golden"], case["partition"], str(case["recovery_point"]), *damages])


_EPOCH_FILE = "leader-epoch-checkpoint"


def _epochs_of(case: Case) -> bytes:
    """Without the file Kafka has the epochs that recovery read, varve those of all batches."""
    lines = (GOLDENS / case["golden"] / "data" / case["partition"] / _EPOCH_FILE).read_text()
    end = case["report"]["log_end_offset"]
    kept = [line for line in lines.splitlines()[2:] if int(line.split()[1]) < end]
    return "\n".join(["0", str(len(kept)), *kept, ""]).encode()


def _cuts_before_recovery(case: Case) -> bool:
    """A segment without index is recovered, and cut, before recovery proper looks at it again."""
    actions = [damage["action"] for damage in case["damages"]]
    return actions == ["remove", "flip"] and case["recovery_point"] == 0


def _cases() -> Iterator[Any]:
    for case in recovery_cases():
        marks: list[pytest.MarkDecorator] = []
        if _cuts_before_recovery(case):
            reason = "Kafka keeps the segments behind one that was cut for want of its index"
            marks.append(pytest.mark.xfail(strict=True, reason=reason))
        yield pytest.param(case, id=_name(case), marks=marks)


@pytest.mark.parametrize("case", list(_cases()))
def test_loading_leaves_the_files_kafka_leaves(case: Case, tmp_path: Path) -> None:
    source = GOLDENS / case["golden"] / "data" / case["partition"]
    report, directory = _load(case, tmp_path)
    assert report == shorten(case["report"])
    strays = stray_snapshots(directory)
    left = {
        name: _shown(name, content)
        for name, content in live_files(directory).items()
        if name not in strays
    }
    expected = {
        name: _expected_content(name, described, source / name)
        for name, described in case["files"].items()
    }
    if any(damage["file"] == _EPOCH_FILE for damage in case["damages"]):
        expected[_EPOCH_FILE] = _epochs_of(case)
    assert _without_empty(left) == _without_empty(expected)


def test_loading_leaves_no_snapshot_without_a_segment(tmp_path: Path) -> None:
    strays = {}
    for number, case in enumerate(recovery_cases()):
        _, directory = _load(case, tmp_path / str(number))
        strays[_name(case)] = stray_snapshots(directory)
    assert {name: found for name, found in strays.items() if found} == {}


def _load(case: Case, scratch: Path) -> tuple[dict[str, Any], Path]:
    """Damages a copy, loads it, closes it; gives the report after loading."""
    directory = scratch / case["partition"]
    shutil.copytree(GOLDENS / case["golden"] / "data" / case["partition"], directory)
    for damage in case["damages"]:
        decode_damage(damage).apply(directory)
    log = open_ours(
        directory,
        clean=case["clean"],
        recovery_point=case["recovery_point"],
        log_start_offset=case["log_start_offset"],
        configs=log_configs(case["partition"]),
        now_ms=latest_timestamp(case["golden"]),
    )
    report = report_ours(log)
    log.close()
    return report, directory


def _without_empty(files: dict[str, Content | str]) -> dict[str, Content | str]:
    """An empty index says what a missing one says; Kafka makes the file, varve does not."""
    return {name: content for name, content in files.items() if content != b""}


def _shown(name: str, content: Content) -> Content | str:
    return _digest(content) if name.endswith(".log") and isinstance(content, bytes) else content


def _expected_content(name: str, described: str, source: Path) -> Content | str:
    if described.startswith("sha256:"):
        return described
    same = described == SAME
    data = source.read_bytes() if same else bytes.fromhex(described.removeprefix("hex:"))
    return _shown(name, comparable(name, data))


def _digest(data: bytes) -> str:
    return f"sha256:{len(data)}:{hashlib.sha256(data).hexdigest()}"
