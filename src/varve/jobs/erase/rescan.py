"""Reads everything again that may hold an erased record: the proof that a receipt stands on.

In the cold tier that is every log object below the topic's prefix, whatever names it: live, of an
older manifest, announced, replaced and in its grace time, or named by nothing.

Invariant  a receipt is issued only after a re-scan found nothing (G8). An object that cannot be
           read ends the erasure; one that is gone since it was listed holds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from varve.commit_log.names import CLEANED, DELETED, LOG, SWAP, parse_file_name
from varve.disk import FileSystem
from varve.foundation.errors import StoreError
from varve.jobs.erase.request import RescanMode
from varve.jobs.erase.scan import TASK_BYTES, TASK_ITEMS, Matcher, Scan, scan_log
from varve.jobs.erase.tasks import LogObject, ScanTask
from varve.jobs.source.local_log import FileSource
from varve.jobs.tasks import TaskRunner, pack_by_size
from varve.jobs.tier.bucket import BucketAccess
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import LOG_PART

_SHOWN: Final = 3
_FILE_STATES: Final = ("", CLEANED, SWAP, DELETED)


class NotErased(StoreError):
    """Records are still there that were to be erased; no receipt is issued."""


@dataclass(slots=True)
class Rescan:
    """What was read again, and where records were found that should be gone."""

    objects: int = 0
    files: int = 0
    bytes: int = 0
    records: int = 0
    outputs: int = 0
    found: dict[str, int] = field(default_factory=dict)
    """How many records by object, file or output."""

    def add(self, name: str, scan: Scan) -> None:
        self.bytes += scan.read_bytes
        self.records += scan.record_count
        if scan.is_matched:
            self.found[name] = len(scan.found)

    def to_json(self) -> dict[str, object]:
        return {
            "objects": self.objects,
            "files": self.files,
            "outputs": self.outputs,
            "bytes": self.bytes,
            "records": self.records,
            "found": sum(self.found.values()),
        }

    def check(self) -> None:
        """Raises NotErased if anything was found."""
        if not self.found:
            return
        places = [f"{name} ({count} records)" for name, count in self.found.items()]
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        raise NotErased(
            f"records that were to be erased are still in {', '.join(places[:_SHOWN])}{more}; no "
            "receipt is issued. Run the job again; what no manifest names is removed by `varve "
            "tier fsck --sweep`, and a copy under way must end first"
        )


def rescan_remote(
    rescan: Rescan,
    reach: BucketAccess,
    partitions: Sequence[RemotePath],
    matcher: Matcher,
    *,
    mode: RescanMode,
    runner: TaskRunner,
) -> None:
    """All log objects below the prefixes of these partitions of one topic."""
    tasks = [
        ScanTask(reach, partition, tuple(logs), is_proof=True)
        for partition in partitions
        for logs in pack_by_size(
            _list_logs(reach, partition, mode),
            lambda log: log.size,
            target_bytes=TASK_BYTES,
            max_items=TASK_ITEMS,
        )
    ]
    for task, scans in zip(tasks, runner.run("re-scan", tasks, matcher), strict=True):
        for log, scan in zip(task.logs, scans, strict=True):
            if scan is not None:
                rescan.objects += 1
                rescan.add(log.key, scan)


def _list_logs(reach: BucketAccess, partition: RemotePath, mode: RescanMode) -> list[LogObject]:
    """Every log object of a partition; in the mode `keys` the live ones with their segments."""
    live = {}
    if mode is RescanMode.KEYS:
        manifests = reach.manifests(partition)
        for segment in manifests.segments(manifests.load()):
            if segment.is_readable:
                live[partition.part_key(segment, LOG_PART)] = segment
    return [
        LogObject(info.key, info.size, live.get(info.key))
        for info in reach.objects().list(partition.segment_folder)
        if info.key.rpartition("/")[2] == LOG_PART
    ]


def rescan_local(rescan: Rescan, fs: FileSystem, directory: str, matcher: Matcher) -> None:
    """All data files of a partition's directory as a whole, also those set aside."""
    for name in fs.names(directory):
        file_name = parse_file_name(name)
        if file_name is None or file_name.kind != LOG or file_name.state not in _FILE_STATES:
            continue
        path = f"{directory}/{name}"
        with fs.open(path) as file:
            scan = scan_log(FileSource(file), file.size(), matcher)
        rescan.files += 1
        rescan.add(path, scan)
