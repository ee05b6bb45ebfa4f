"""Checks every invariant of log directories on disk, names what is broken, and repairs it."""

from varve.commit_log.check.directory import (
    DirectoryFacts,
    find_partition,
    hold_lock,
    inspect_directory,
    inspect_partition,
    is_log_directory,
    is_partition_directory,
)
from varve.commit_log.check.findings import RULES, Finding, FindingList, Severity
from varve.commit_log.check.partition import PartitionContext, PartitionFacts, ignore_progress

__all__ = [
    "RULES",
    "DirectoryFacts",
    "Finding",
    "FindingList",
    "PartitionContext",
    "PartitionFacts",
    "Severity",
    "find_partition",
    "hold_lock",
    "ignore_progress",
    "inspect_directory",
    "inspect_partition",
    "is_log_directory",
    "is_partition_directory",
]
