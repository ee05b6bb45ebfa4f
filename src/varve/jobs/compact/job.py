"""Compacts topics in the cold tier: every key's latest record stays, as the local cleaner has it.

Invariant  partitions are independent: one that fails does not stop the others. The tasks of one
           stage of all partitions are carried out together.
Crash      docs/tiering.md; a job may be killed anywhere and run again.
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
    """Compacts what is due of these topics; `settings` hold for all of them.

    `directory` is the log directory that was copied: what its logs have left of the bucket, as they
    do when a new leader cuts them, is not taken for the latest of a key.

    Raises NotFound for a topic that the tier does not hold; what fails later is part of the result
    of its partition. One job at a time works on a partition: a second one
    gets an error that names the first.
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
    """Compacts what is due of these partitions; `histories` are the epochs of their logs."""
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
