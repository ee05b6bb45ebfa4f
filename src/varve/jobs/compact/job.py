"""Compacts the remote segments of topics by the rules of the local log cleaner.

Invariant  partitions are independent: a partition that fails does not stop the others. The tasks of
           a stage run together for all partitions.
Crash      a job may be killed at any point and run again. docs/how-to/tier-to-a-bucket.md
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from varve.commit_log import LogSettings
from varve.disk import RealFileSystem
from varve.embedded.topic_table import read_newest_table
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.settings import GivenValue, parse_settings
from varve.jobs.compact.cleanable import find_history
from varve.jobs.compact.partition import PartitionCompaction
from varve.jobs.compact.result import CompactionResult
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.tasks import TaskRunner, run_together
from varve.jobs.tier.bucket import Bucket, BucketAccess, find_topic
from varve.tiering.manifest.pages import new_id
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import Epochs


def compact(
    address: Bucket,
    topics: Sequence[str],
    *,
    settings: CompactSettings | Mapping[str, CompactSettings],
    runner: TaskRunner,
    directories: Sequence[str] = (),
    clock: Clock | None = None,
) -> CompactionResult:
    """Compacts the partitions of these topics that are due; `settings` may differ by topic.

    `directories` are the log directories that the bucket is copied from. Remote segments that their
    logs have truncated for a new leader do not count as the latest records of their keys.

    Raises NotFound for a topic that the tier does not hold; later errors are in the result of their
    partition. A partition is compacted by one job at a time: a second job gets an error that names
    the first.
    """
    partitions = [
        (partition, settings[name] if isinstance(settings, Mapping) else settings)
        for name in topics
        for partition in find_topic(address, name).partitions
    ]
    fs = RealFileSystem()
    epochs = [
        (partition, find_history(fs, directory, partition))
        for directory in directories
        for partition, _ in partitions
    ]
    return compact_partitions(
        address,
        partitions,
        runner=runner,
        clock=clock or SystemClock(),
        random=random.Random(),
        histories={partition: history for partition, history in epochs if history is not None},
    )


def compact_partitions(
    bucket: BucketAccess,
    partitions: Sequence[tuple[RemotePath, CompactSettings]],
    *,
    runner: TaskRunner,
    clock: Clock,
    random: random.Random,
    histories: Mapping[RemotePath, Epochs],
) -> CompactionResult:
    """Compacts the partitions that are due; `histories` are the leader epochs of their logs."""
    began_ms = clock.now_ms()
    job_id = f"compact-{new_id(random)}"
    runs = [
        PartitionCompaction(
            partition,
            bucket,
            replace(settings, inline_bytes=settings.inline_bytes // len(partitions)),
            clock=clock,
            random=random,
            job_id=job_id,
            history=histories.get(partition),
        ).stages()
        for partition, settings in partitions
    ]
    results = run_together(runs, runner)
    return CompactionResult(job_id, tuple(results), clock.now_ms() - began_ms)


def choose_topics(
    topics: Sequence[str], directories: Sequence[str], settings: Mapping[str, GivenValue]
) -> dict[str, LogSettings]:
    """The topics to compact, by default all compacted ones of the tier, and their settings.

    `settings` take precedence over those of the log directories. Without directories the topics
    must be named, and their policy is compact. Raises NotFound for a topic that the directories do
    not have, InvalidRequest if there is nothing to compact.
    """
    if not directories:
        if not topics:
            raise InvalidRequest(
                "name the topics, or a log directory with --dir: an object store does not record "
                "which topics are compacted"
            )
        values = {"cleanup.policy": "compact", **settings}
        return {name: parse_settings(LogSettings, values, f"topic {name}") for name in topics}
    where = ", ".join(directories)
    known = {
        name: parse_settings(LogSettings, {**entry.settings, **settings}, f"topic {name}")
        for name, entry in read_newest_table(RealFileSystem(), directories).topics.items()
    }
    for name in topics:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise NotFound(f"{where} has no topic {name!r:.260} (topics: {listed:.400})")
    chosen = list(topics) or [
        name for name, log in known.items() if log.remote_storage_enable and log.is_compacted
    ]
    if not chosen:
        raise InvalidRequest(f"{where} has no compacted topic in the remote tier")
    return {name: known[name] for name in chosen}
