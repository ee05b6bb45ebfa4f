"""The check of a log directory or partition: files, key indexes, the records of internal topics,
the topic table and the remote tier.

Invariant  nothing is written without `repair`, and no data is cut without `allow_data_loss`. The
           remote tier is only read. The evidence of removals is not checked here, see
           `varve.cleaning.removals.audit`.
"""

import posixpath
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from varve.cleaning.key_index.segment_indexes import check_key_indexes
from varve.commit_log.check import (
    Finding,
    Severity,
    hold_lock,
    inspect_directory,
    inspect_partition,
    is_log_directory,
    is_partition_directory,
)
from varve.commit_log.check.directory import DirectoryFacts
from varve.commit_log.check.findings import RULES
from varve.commit_log.check.partition import PartitionContext, PartitionFacts
from varve.commit_log.check.repair import Quarantine, RepairReport, RepairTools, repair_directory
from varve.commit_log.names import LOG_START_OFFSET_FILE, TopicPartition
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.disk import FileSystem
from varve.embedded.offline_tier import OfflineTier
from varve.embedded.state_records_check import STATE_RULES, check_state_records
from varve.embedded.tier_location import DEFAULT_METADATA, TIER_FILE, read_location
from varve.embedded.topic_table import (
    TOPICS_FILE,
    decode_topics,
    find_lost_settings,
    find_tiered_topics,
    lost_settings_message,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, StoreError
from varve.object_store import ObjectStore
from varve.tiering.fsck import ObjectClass, PartitionAccount, fsck_partition
from varve.tiering.history_check import LocalPart, find_holes, find_lost

QUARANTINE_NAME: Final = "varve-quarantine"

CHECK_RULES: Final = {
    **RULES,
    **STATE_RULES,
    "topics-lost": "Every topic with a part in the remote tier has its settings.",
    "tier-file": "The file with the location of the remote tier can be read.",
    "tier-unavailable": "The remote tier responds (with --tier).",
    "tier-hole": "Every offset from the log start on is in one of the tiers (with --tier).",
    "tier-lost-tail": "The local log has what was copied of its latest epoch (with --tier).",
    "tier-object": "Objects of the manifest exist, and with --deep are as they were copied.",
    "tier-orphan": "Every object is in a manifest (with --tier).",
    "tier-unchecked": "Manifests are beside the objects, where they can be checked.",
}

Starts = Mapping[TopicPartition, int]
"""Log start offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What a check does. `store_settings` are given to check the remote tier too."""

    deep: bool = False
    lock: bool = True
    repair: bool = False
    allow_data_loss: bool = False
    quarantine: str | None = None
    store_settings: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings, and after a repair its report and the remaining findings."""

    path: str
    before: list[Finding]
    report: RepairReport | None = None
    after: list[Finding] | None = None

    @property
    def is_clean(self) -> bool:
        findings = self.before if self.after is None else self.after
        is_refused = self.report is not None and bool(self.report.refused)
        return not is_refused and all(f.severity is not Severity.ERROR for f in findings)


def check_path(
    fs: FileSystem,
    path: str,
    options: CheckOptions,
    clock: Clock,
    advance: Callable[[int], None],
) -> CheckResult:
    """Checks a log directory or a partition directory; raises Locked when it is in use."""
    check = _Check(fs, path.rstrip("/") or "/", options, clock.now_ms(), advance)
    with hold_lock(fs, check.log_directory, wanted=options.lock):
        facts = check.inspect()
        before = check.find_all(facts)
        if not options.repair:
            return CheckResult(check.path, before)
        parent = posixpath.dirname(check.log_directory) or "."
        tools = RepairTools(
            fs=fs,
            clock=clock,
            random=random.Random(),
            quarantine=Quarantine(fs, options.quarantine or f"{parent}/{QUARANTINE_NAME}"),
            allow_data_loss=options.allow_data_loss,
        )
        has_own_files = not check.is_partition or is_log_directory(fs, check.log_directory)
        report = repair_directory(facts, tools, has_own_files=has_own_files)
        return CheckResult(check.path, before, report, check.find_all(check.inspect()))


class _Check:
    """One path and the ways to look at it."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        options: CheckOptions,
        now_ms: int,
        advance: Callable[[int], None],
    ) -> None:
        self.path = path
        self.is_partition = is_partition_directory(fs, path)
        self.log_directory = (posixpath.dirname(path) or ".") if self.is_partition else path
        self._fs = fs
        self._options = options
        self._now_ms = now_ms
        self._context = PartitionContext(now_ms=now_ms, deep=options.deep, advance=advance)

    def inspect(self) -> DirectoryFacts:
        inspect = inspect_partition if self.is_partition else inspect_directory
        return inspect(self._fs, self.path, self._context)

    def find_all(self, facts: DirectoryFacts) -> list[Finding]:
        findings = [*facts.findings]
        if self._options.deep:
            findings += check_key_indexes(self._fs, facts)
        findings += check_state_records(self._fs, facts)
        findings += self._check_topics()
        findings += self._check_tier_file()
        if self._options.store_settings is not None:
            findings += self._check_tier(facts, self._options.store_settings)
        return findings

    def _check_topics(self) -> list[Finding]:
        """Faults of the topic table, which a repair leaves alone: it cannot be guessed."""
        path = f"{self.path}/{TOPICS_FILE}"
        try:
            data = self._fs.read(path) if self._fs.exists(path) else None
            known = {} if data is None else decode_topics(data, path).topics
        except StoreError as error:
            message = str(error).removeprefix(f"{path}: ")
            return [Finding(Severity.ERROR, path, None, "topics-corrupt", message)]
        return [
            Finding(Severity.ERROR, path, None, "topics-lost", lost_settings_message(topic))
            for topic in sorted(find_lost_settings(self._fs, [self.path], known))
        ]

    # Remote tier

    @property
    def _tier_file(self) -> str:
        return f"{self.log_directory}/{TIER_FILE}"

    def _check_tier_file(self) -> list[Finding]:
        try:
            read_location(self._fs, self.log_directory)
        except Corrupt as error:
            message = str(error).removeprefix(f"{self._tier_file} ")
            return [Finding(Severity.ERROR, self._tier_file, None, "tier-file", message)]
        return []

    def _check_tier(
        self, facts: DirectoryFacts, store_settings: Mapping[str, str]
    ) -> list[Finding]:
        try:
            starts = self._read_starts()
            tiered = self._find_tiered(facts, starts)
            location = read_location(self._fs, self.log_directory)
            if not tiered:
                return []
            if location is None:
                return list(_check_without_copies(tiered, starts))
            if location.metadata != DEFAULT_METADATA:
                message = (
                    f"manifests are kept by varve.tier.metadata={location.metadata} and are not "
                    "checked; `varve tier status` reads them"
                )
                return [Finding(Severity.NOTE, self._tier_file, None, "tier-unchecked", message)]
            with OfflineTier(self._fs, self.log_directory, store_settings) as tier:
                return [
                    finding
                    for partition, partition_facts in tiered.items()
                    for finding in self._check_remote(tier, partition, partition_facts, starts)
                ]
        except StoreError as error:
            return [Finding(Severity.ERROR, self._tier_file, None, "tier-unavailable", str(error))]

    def _read_starts(self) -> Starts:
        path = f"{self.log_directory}/{LOG_START_OFFSET_FILE}"
        if not self._fs.exists(path):
            return {}
        return decode_offsets(self._fs.read(path), where=path)

    def _find_tiered(
        self, facts: DirectoryFacts, starts: Starts
    ) -> dict[TopicPartition, PartitionFacts]:
        """Partitions of tiered topics, and those that start before their first local segment."""
        enabled = find_tiered_topics(self._fs, self.log_directory)
        return {
            partition: partition_facts
            for partition, partition_facts in sorted(facts.partitions.items())
            if partition.topic in enabled
            or starts.get(partition, partition_facts.first_base_offset)
            < partition_facts.first_base_offset
        }

    def _check_remote(
        self, tier: OfflineTier, partition: TopicPartition, facts: PartitionFacts, starts: Starts
    ) -> Iterator[Finding]:
        local = LocalPart(
            log_start_offset=starts.get(partition),
            local_start_offset=facts.first_base_offset,
            end_offset=facts.end_offset,
            epochs=facts.history.entries,
        )
        manifests = tier.open_manifests(partition, facts.topic_id)
        manifest = manifests.load()
        for start, end in find_holes(manifests, manifest, local):
            yield _hole(facts, start, end)
        lost = find_lost(manifests, manifest, local)
        if lost is not None:
            yield _lost_tail(facts, *lost)
        if manifest.version:
            account = fsck_partition(manifests, now_ms=self._now_ms, deep=self._options.deep)
            yield from _account_findings(tier.objects, account)


def _check_without_copies(
    tiered: Mapping[TopicPartition, PartitionFacts], starts: Starts
) -> Iterator[Finding]:
    """Nothing was ever copied: what is not on the local disk does not exist."""
    for partition, facts in tiered.items():
        start = starts.get(partition, facts.first_base_offset)
        if start < facts.first_base_offset:
            yield _hole(facts, start, facts.first_base_offset)


def _hole(facts: PartitionFacts, start: int, end: int) -> Finding:
    message = f"offsets {start} to {end - 1} are neither on the local disk nor in the remote tier"
    return Finding(Severity.ERROR, facts.directory, None, "tier-hole", message)


def _lost_tail(facts: PartitionFacts, start: int, end: int) -> Finding:
    message = (
        f"the log ends at offset {start}, but its latest epoch was copied up to {end}: `varve tier "
        "restore` into another directory has the rest"
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
