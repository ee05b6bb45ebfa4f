"""The cold tier, as `varve check --tier` looks at it.

Invariant  reads only, of the local disk and of the object store; no log is opened.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from varve.cli.tier_access import find_tiered, open_manifests, open_tier
from varve.commit_log.check import Finding, Severity
from varve.commit_log.check.directory import DirectoryFacts
from varve.commit_log.check.partition import PartitionFacts
from varve.commit_log.names import LOG_START_OFFSET_FILE, TopicPartition
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.disk import FileSystem
from varve.embedded.tier_location import DEFAULT_METADATA, TIER_FILE, TierLocation, read_location
from varve.foundation.errors import Corrupt, StoreError
from varve.object_store import ObjectStore
from varve.tiering.copy.history_check import LocalPart, find_holes, find_lost
from varve.tiering.fsck import fsck_partition
from varve.tiering.fsck_report import ObjectClass, PartitionAccount
from varve.tiering.partition import get_remote_path
from varve.tiering.restore import read_cluster

TIER_RULES: Final = {
    "topics-lost": "Every topic with a part in the cold tier has its settings.",
    "tier-file": "The file that tells where the cold tier is can be read.",
    "tier-unavailable": "The cold tier can be asked (with --tier).",
    "tier-hole": "Every offset from the log start on is in one of the tiers (with --tier).",
    "tier-lost-tail": "The local log has what was copied of its latest epoch (with --tier).",
    "tier-object": "Objects that the manifest names are there, with --deep as they were copied.",
    "tier-orphan": "No object is there that no manifest names (with --tier).",
    "tier-unchecked": "Manifests are kept beside the objects, where they can be checked.",
}


@dataclass(frozen=True, slots=True)
class TierCheck:
    """What is looked at; `store_settings` are those of the object store."""

    store_settings: list[str]
    deep: bool
    now_ms: int


def check_tier_file(fs: FileSystem, log_directory: str) -> list[Finding]:
    """What is wrong with the file that tells where the cold tier is."""
    try:
        read_location(fs, log_directory)
    except Corrupt as error:
        path = f"{log_directory}/{TIER_FILE}"
        message = str(error).removeprefix(f"{path} ")
        return [Finding(Severity.ERROR, path, None, "tier-file", message)]
    return []


def check_tier(
    fs: FileSystem, log_directory: str, facts: DirectoryFacts, check: TierCheck
) -> list[Finding]:
    """What is wrong with the cold part of the partitions that have one."""
    try:
        starts = _read_starts(fs, log_directory)
        tiered = _find_tiered(fs, log_directory, facts, starts)
        place = read_location(fs, log_directory)
        if not tiered:
            return []
        if place is None:
            return list(_check_without(tiered, starts))
        if place.metadata != DEFAULT_METADATA:
            message = f"manifests are kept as varve.tier.metadata={place.metadata} says, and are "
            message += "not checked; `varve tier status` asks for them"
            path = f"{log_directory}/{TIER_FILE}"
            return [Finding(Severity.NOTE, path, None, "tier-unchecked", message)]
        return _check_all(fs, log_directory, place, tiered, starts, check)
    except StoreError as error:
        path = f"{log_directory}/{TIER_FILE}"
        return [Finding(Severity.ERROR, path, None, "tier-unavailable", str(error))]


def _read_starts(fs: FileSystem, log_directory: str) -> dict[TopicPartition, int]:
    path = f"{log_directory}/{LOG_START_OFFSET_FILE}"
    return decode_offsets(fs.read(path), where=path) if fs.exists(path) else {}


def _find_tiered(
    fs: FileSystem,
    log_directory: str,
    facts: DirectoryFacts,
    starts: dict[TopicPartition, int],
) -> dict[TopicPartition, PartitionFacts]:
    """Partitions whose topic is in the tier, or that begin before their first local segment."""
    enabled = find_tiered(fs, log_directory)
    return {
        partition: one
        for partition, one in sorted(facts.partitions.items())
        if partition.topic in enabled
        or starts.get(partition, one.first_base_offset) < one.first_base_offset
    }


def _check_without(
    tiered: dict[TopicPartition, PartitionFacts], starts: dict[TopicPartition, int]
) -> Iterator[Finding]:
    """Nothing was ever copied from here: what is not local is nowhere."""
    for partition, facts in tiered.items():
        start = starts.get(partition, facts.first_base_offset)
        if start < facts.first_base_offset:
            yield _hole(facts, start, facts.first_base_offset)


def _check_all(
    fs: FileSystem,
    log_directory: str,
    place: TierLocation,
    tiered: dict[TopicPartition, PartitionFacts],
    starts: dict[TopicPartition, int],
    check: TierCheck,
) -> list[Finding]:
    cluster = read_cluster(fs, log_directory)
    objects = open_tier(place.url, check.store_settings)
    findings: list[Finding] = []
    try:
        for partition, facts in tiered.items():
            home = get_remote_path(partition, facts.topic_id, cluster)
            local = LocalPart(
                log_start_offset=starts.get(partition),
                local_start_offset=facts.first_base_offset,
                end_offset=facts.end_offset,
                epochs=facts.history.entries,
            )
            manifests = open_manifests(objects, home)
            manifest = manifests.load()
            holes = find_holes(manifests, manifest, local)
            findings += [_hole(facts, start, end) for start, end in holes]
            lost = find_lost(manifests, manifest, local)
            if lost is not None:
                findings.append(_lost_tail(facts, *lost))
            if manifest.version:
                account = fsck_partition(manifests, now_ms=check.now_ms, deep=check.deep)
                findings += _account_findings(objects, account)
    finally:
        objects.close()
    return findings


def _hole(facts: PartitionFacts, start: int, end: int) -> Finding:
    message = f"offsets {start} to {end - 1} are neither on the local disk nor in the cold tier"
    return Finding(Severity.ERROR, facts.directory, None, "tier-hole", message)


def _lost_tail(facts: PartitionFacts, start: int, end: int) -> Finding:
    message = (
        f"the log ends at offset {start}, and {end} was reached by what was copied of its latest "
        f"epoch: `varve tier restore` into another directory has the rest"
    )
    return Finding(Severity.ERROR, facts.directory, None, "tier-lost-tail", message)


def _account_findings(objects: ObjectStore, account: PartitionAccount) -> Iterator[Finding]:
    for damage in account.damage:
        path = posixpath.join(objects.name, damage.key)
        yield Finding(Severity.ERROR, path, None, "tier-object", damage.message)
    for listed in account.listed:
        if listed.kind is ObjectClass.ORPHAN:
            message = f"{listed.reason}, {listed.size} bytes: `varve tier fsck --sweep` removes it"
            path = posixpath.join(objects.name, listed.key)
            yield Finding(Severity.NOTE, path, None, "tier-orphan", message)
