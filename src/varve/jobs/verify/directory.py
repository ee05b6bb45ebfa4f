"""The local log directory of a verification: what `varve check --deep` finds, and whether the tiers
join.

Invariant  reads only; the directory's lock is held meanwhile. One that a store has open is left
           alone, and that is told.
"""

from collections.abc import Iterator
from typing import Final

from varve.cleaning.key_index.segment_indexes import check_keys
from varve.commit_log.check import hold_lock, inspect_directory
from varve.commit_log.check_partition import PartitionContext, PartitionFacts
from varve.commit_log.checkpoints import decode_offsets
from varve.commit_log.finding import Finding, Severity
from varve.commit_log.names import LOG_START_OFFSET_FILE, TopicPartition
from varve.disk import FileSystem
from varve.foundation.errors import Locked, StoreError
from varve.jobs.tier.reach import TierReach
from varve.jobs.verify.findings import VerifyFinding
from varve.tiering.copy.history_check import LocalPart, find_holes, find_lost
from varve.tiering.partition import get_remote_path
from varve.tiering.restore import read_cluster

_REPAIR: Final = "`varve check --repair`"


def verify_directory(
    fs: FileSystem, directory: str, reach: TierReach, *, now_ms: int
) -> list[VerifyFinding]:
    """What is wrong with a log directory, and between it and the cold tier."""
    try:
        with hold_lock(fs, directory):
            context = PartitionContext(now_ms=now_ms, deep=True)
            facts = inspect_directory(fs, directory, context)
            found = [_tell(one) for one in (*facts.findings, *check_keys(fs, facts))]
            starts = _read_starts(fs, directory)
            cluster = read_cluster(fs, directory)
            for partition, one in sorted(facts.partitions.items()):
                found += _check_join(partition, one, starts.get(partition), cluster, reach)
            return found
    except Locked as error:
        return [
            VerifyFinding(
                severity=Severity.NOTE,
                rule="directory-in-use",
                where=directory,
                message=str(error),
                remedy="close the store and verify again, or `varve check --no-lock`",
            )
        ]


def _read_starts(fs: FileSystem, directory: str) -> dict[TopicPartition, int]:
    path = f"{directory}/{LOG_START_OFFSET_FILE}"
    return decode_offsets(fs.read(path), where=path) if fs.exists(path) else {}


def _tell(one: Finding) -> VerifyFinding:
    return VerifyFinding(
        severity=one.severity,
        rule=one.rule,
        where=one.path,
        message=one.message,
        remedy="" if one.repair is None else f"{_REPAIR}: {one.repair}",
        position=one.position,
    )


def _check_join(
    partition: TopicPartition,
    facts: PartitionFacts,
    log_start_offset: int | None,
    cluster: str | None,
    reach: TierReach,
) -> Iterator[VerifyFinding]:
    """Whether every offset from the log start on is in one of the tiers."""
    if facts.topic_id is None or cluster is None:
        return
    try:
        manifests = reach.manifests(get_remote_path(partition, facts.topic_id, cluster))
        manifest = manifests.load()
    except StoreError:
        return  # Told with the cold part of it.
    if manifest.version == 0:
        return
    local = LocalPart(
        log_start_offset=log_start_offset,
        local_start_offset=facts.first_base_offset,
        end_offset=facts.end_offset,
        epochs=facts.history.entries,
    )
    for start, end in find_holes(manifests, manifest, local):
        message = f"offsets {start} to {end - 1} are neither on the local disk nor in the cold tier"
        yield _broken("tier-hole", partition, facts, message, start)
    lost = find_lost(manifests, manifest, local)
    if lost is not None:
        message = f"the log ends at offset {lost[0]}, what was copied of its latest epoch at "
        yield _broken("tier-lost-tail", partition, facts, f"{message}{lost[1]}", lost[0])


def _broken(
    rule: str, partition: TopicPartition, facts: PartitionFacts, message: str, offset: int
) -> VerifyFinding:
    return VerifyFinding(
        severity=Severity.ERROR,
        rule=rule,
        where=facts.directory,
        message=message,
        remedy="`varve tier restore` into another directory has what the bucket holds",
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
    )
