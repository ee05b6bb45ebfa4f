"""Compacts the remote segments of topics by the rules of the local log cleaner.

Invariant  partitions are independent: a partition that fails does not stop the others. The tasks of
           a stage run together for all partitions.
Crash      a job may be killed at any point and run again. docs/tiering.md
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from varve.disk import RealFileSystem
from varve.foundation.clock import Clock, SystemClock
from varve.jobs.compact.cleanable import find_history
from varve.jobs.compact.partition import PartitionCompaction
from varve.jobs.compact.result import CompactionResult
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.tasks import TaskRunner, run_together
from varve.jobs.tier.bucket import Bucket, BucketAccess, find_topic
from varve.tiering.manifest.pages import new_id
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import Epochs

NO_HISTORIES: Final[Mapping[RemotePath, Epochs]] = MappingProxyType({})


def compact(
    address: Bucket,
    topics: Sequence[str],
    *,
    settings: CompactSettings,
    runner: TaskRunner,
    directory: str | None = None,
    clock: Clock | None = None,
) -> CompactionResult:
    """Compacts the partitions of these topics that are due; `settings` apply to all of them.

    `directory` is the log directory that the bucket is copied from. Remote segments that its logs
    have truncated for a new leader do not count as the latest records of their keys.

    Raises NotFound for a topic that the tier does not hold; later errors are in the result of their
    partition. A partition is compacted by one job at a time: a second job gets an error that names
    the first.
    """
    partitions = [
        partition for name in topics for partition in find_topic(address, name).partitions
    ]
    return compact_partitions(
        address,
        partitions,
        settings=settings,
        runner=runner,
        clock=clock or SystemClock(),
        random=random.Random(),
        histories=_read_histories(directory, partitions),
    )


def _read_histories(
    directory: str | None, partitions: Sequence[RemotePath]
) -> dict[RemotePath, Epochs]:
    if directory is None:
        return {}
    fs = RealFileSystem()
    pairs = [(partition, find_history(fs, directory, partition)) for partition in partitions]
    return {partition: epochs for partition, epochs in pairs if epochs is not None}


def compact_partitions(
    bucket: BucketAccess,
    partitions: Sequence[RemotePath],
    *,
    settings: CompactSettings,
    runner: TaskRunner,
    clock: Clock,
    random: random.Random,
    histories: Mapping[RemotePath, Epochs] = NO_HISTORIES,
) -> CompactionResult:
    """Compacts the partitions that are due; `histories` are the leader epochs of their logs."""
    began_ms = clock.now_ms()
    job_id = f"compact-{new_id(random)}"
    shared = replace(settings, inline_bytes=settings.inline_bytes // max(len(partitions), 1))
    runs = [
        PartitionCompaction(
            partition,
            bucket,
            shared,
            clock=clock,
            random=random,
            job_id=job_id,
            history=histories.get(partition),
        ).stages()
        for partition in partitions
    ]
    results = run_together(runs, runner)
    return CompactionResult(job_id, tuple(results), clock.now_ms() - began_ms)
