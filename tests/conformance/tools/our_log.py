"""A varve log opened over a directory as Apache Kafka's loader is, and described in its terms."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from varve.commit_log import LoadRequest, Log, LogSettings, SegmentFiles, TopicPartition
from varve.commit_log.names import OWN_PREFIX
from varve.commit_log.producer_snapshots import SnapshotEntry, decode_producer_snapshot
from varve.disk import RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt
from varve.foundation.settings import parse_settings

NEVER_MS = 2**31 - 1
INTERNAL_NAMES = {"internal.segment.bytes": "segment.bytes"}


def open_ours(
    directory: Path,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    configs: Mapping[str, str],
    now_ms: int,
) -> Log:
    """Opens a partition directory with varve."""
    known = {INTERNAL_NAMES.get(name, name): value for name, value in configs.items()}
    topic, partition = directory.name.rsplit("-", maxsplit=1)
    return Log.open(
        LoadRequest(
            files=SegmentFiles(RealFileSystem()),
            directory=str(directory),
            topic_partition=TopicPartition(topic, int(partition)),
            settings=parse_settings(LogSettings, known),
            clock=ManualClock(now_ms),
            random=random.Random(0),
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            producer_expiration_ms=NEVER_MS,
        )
    )


def report_ours(log: Log) -> dict[str, Any]:
    """The part of the Java side's report that a varve log answers too."""
    segments = list(log.view)
    return {
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.end_offset,
        "recovery_point": log.recovery_point,
        "size": log.size,
        "segments": [
            {"base_offset": segment.base_offset, "size": segment.size} for segment in segments
        ],
        "aborted_transactions": [
            [entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset]
            for entry in log.aborted_transactions()
            if entry.last_offset >= log.log_start_offset
        ],
    }


def shorten(report: Mapping[str, Any]) -> dict[str, Any]:
    """The Java side's report, cut to what `report_ours` holds."""
    return {
        **{name: report[name] for name in ("log_start_offset", "log_end_offset")},
        **{name: report[name] for name in ("recovery_point", "size")},
        "segments": [
            {name: segment[name] for name in ("base_offset", "size")}
            for segment in report["segments"]
        ],
        "aborted_transactions": report["aborted_transactions"],
    }


def comparable(name: str, data: bytes) -> bytes | list[SnapshotEntry]:
    """A file's content, but the producers of a whole snapshot, which stand in no order."""
    if not name.endswith(".snapshot"):
        return data
    try:
        return sorted(decode_producer_snapshot(data))
    except Corrupt:
        return data


def live_files(directory: Path) -> dict[str, bytes | list[SnapshotEntry]]:
    """Every file of a closed partition directory but varve's own and those marked for deletion."""
    return {
        path.name: comparable(path.name, path.read_bytes())
        for path in sorted(directory.iterdir())
        if path.suffix != ".deleted" and not path.name.startswith(OWN_PREFIX)
    }


def stray_snapshots(directory: Path) -> set[str]:
    """Snapshots at no segment's base offset, the newest excepted: that one is the log end's."""
    bases = {path.stem for path in directory.glob("*.log")}
    snapshots = sorted(directory.glob("*.snapshot"))
    return {path.name for path in snapshots[:-1] if path.stem not in bases}
