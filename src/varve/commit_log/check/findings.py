"""Findings of a check: the file, the broken rule and the possible repair; and the rules.

Invariant  every finding names a rule; the names of rules never change.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.foundation.errors import Corrupt
from varve.foundation.units import format_count

RULES: Final[dict[str, str]] = {
    # Batches of a data file.
    "batch-crc": "A batch's checksum matches its bytes.",
    "batch-size": "A batch is at least as long as its header.",
    "batch-magic": "A batch has a known message format.",
    "old-format": "A batch has message format 2; formats 0 and 1 are not read.",
    "torn-tail": "A data file ends with a whole batch.",
    "zero-tail": "A data file does not end in zeros, once its log was closed.",
    "offsets-ascend": "Offsets ascend from batch to batch, and from the segment's base.",
    "offset-overflow": "Offsets stay within 32 bits of the segment's base.",
    "batch-count": "A batch has no more records than offsets.",
    "control-batch": "A control batch holds a readable marker.",
    "records-corrupt": "Records can be decompressed and parsed.",
    "records-offsets": "Record offsets ascend within their batch.",
    "records-timestamp": "A batch's largest timestamp is that of its records.",
    "segments-overlap": "A segment begins where the one before has ended.",
    # Indexes.
    "missing-index": "A segment has an offset index.",
    "index-length": "An offset index is a whole number of entries.",
    "index-untrimmed": "An offset index ends with its last entry.",
    "index-order": "Entries of an offset index ascend.",
    "index-position": "Entries of an offset index point to the start of a batch.",
    "index-offset": "Entries of an offset index name the last offset of an append.",
    "missing-timeindex": "A segment has a time index.",
    "timeindex-length": "A time index is a whole number of entries.",
    "timeindex-untrimmed": "A time index ends with its last entry.",
    "timeindex-order": "Entries of a time index ascend.",
    "timeindex-offset": "Entries of a time index name the last offset of a batch.",
    "timeindex-timestamp": "Entries of a time index name the first batch with that timestamp.",
    "timeindex-lags": "A time index holds the segment's largest timestamp.",
    "missing-txnindex": "A segment with aborted transactions has an index of them.",
    "txnindex-corrupt": "An index of aborted transactions can be read.",
    "txnindex-untrue": "An index of aborted transactions says what the markers say.",
    "orphan-index": "An index has its data file.",
    "key-index-corrupt": "A key index can be read and its checksum matches (with --deep).",
    "key-index-stale": "A key index was made of the data file beside it (with --deep).",
    # State beside the data.
    "append-times-corrupt": "Entries of append times are whole and match their checksum.",
    "not-a-file": "No directory has the name of a key index or of the append times.",
    "snapshot-corrupt": "A producer snapshot can be read and its checksum matches.",
    "snapshot-untrue": "A producer snapshot says what the batches before it say.",
    "snapshot-incomplete": "A producer snapshot has every producer that may still write.",
    "snapshot-beyond-end": "A producer snapshot is not beyond the log's end.",
    "snapshot-stray": "A producer snapshot belongs to a segment or to the log's end.",
    "missing-epochs": "A log with leader epochs has a history of them.",
    "epochs-corrupt": "The history of leader epochs can be read.",
    "epochs-order": "Leader epochs and their first offsets ascend.",
    "epochs-untrue": "The history of leader epochs says what the batches say.",
    "epochs-incomplete": "The history of leader epochs reaches back to the first batch.",
    "epochs-beyond-end": "No leader epoch begins beyond the log's end.",
    "epoch-descends": "Leader epochs do not descend from batch to batch.",
    "missing-partition-metadata": "A partition has its topic's id.",
    "partition-metadata-corrupt": "The topic's id can be read.",
    "topic-id-differs": "All partitions of a topic have the same topic id.",
    # Leftovers.
    "leftover-deleted": "Nothing deleted is left.",
    "leftover-cleaned": "No cleaning was cut short.",
    "leftover-swap": "No swap of segments was cut short.",
    "leftover-tmp": "No write of a small file was cut short.",
    "unknown-file": "Every file is one of a partition's.",
    "vanished": "No file is removed while it is checked.",
    # The log directory.
    "missing-meta-properties": "A log directory has an owner in meta.properties.",
    "meta-properties-corrupt": "The owner of a log directory can be read.",
    "topics-corrupt": "The table of topics can be read.",
    "checkpoint-corrupt": "A checkpoint can be read.",
    "checkpoint-range": "Checkpointed offsets are not negative.",
    "checkpoint-unknown-partition": "A checkpoint names partitions of its directory.",
    "recovery-point-beyond-end": "Synced records are still there.",
    "log-start-beyond-end": "A log does not start beyond its end.",
    "high-watermark-beyond-end": "A high watermark is not beyond the log's end.",
    "cleaner-offset-beyond-end": "A log is not cleaned beyond its end.",
    "foreign-directory": "Directories are named like partitions.",
    "delete-partition": "No partition waits for its deletion.",
    "future-partition": "No partition is being moved here.",
    "stray-partition": "No partition is set aside.",
}


FINDINGS_PER_RULE_AND_FILE: Final = 16


class Severity(StrEnum):
    """ERROR is damage, WARNING is repaired by the next open, NOTE is only information."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


def count_by_severity(severities: Iterable[Severity]) -> str:
    """The numbers of findings, as `1 error, 2 warnings`; empty without one."""
    counts = Counter(severities)
    return ", ".join(
        format_count(counts[severity], severity) for severity in Severity if counts[severity]
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule; `repair` describes the repair, None if there is none."""

    severity: Severity
    path: str
    position: int | None
    rule: str
    message: str
    repair: str | None = None


class FindingList:
    """Collects findings; of one rule in one file only the first few, and the number of others."""

    def __init__(self, rules: Mapping[str, str] = RULES) -> None:
        self._rules = rules
        self._findings: list[Finding] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(
        self,
        severity: Severity,
        path: str,
        rule: str,
        message: str,
        *,
        position: int | None = None,
        repair: str | None = None,
    ) -> None:
        assert rule in self._rules, f"{rule} is not a rule"
        self._counts[rule, path] += 1
        if self._counts[rule, path] <= FINDINGS_PER_RULE_AND_FILE:
            self._findings.append(Finding(severity, path, position, rule, message, repair))

    error = functools.partialmethod(add, Severity.ERROR)
    warning = functools.partialmethod(add, Severity.WARNING)
    note = functools.partialmethod(add, Severity.NOTE)

    def add_corrupt(
        self,
        path: str,
        rule: str,
        error: Corrupt,
        *,
        severity: Severity = Severity.ERROR,
        repair: str | None = None,
    ) -> None:
        """Adds a finding of a rule for a file that cannot be decoded."""
        self.add(severity, path, rule, str(error).removeprefix(f"{path}: "), repair=repair)

    def has(self, rule: str, path: str) -> bool:
        return self._counts[rule, path] > 0

    def all(self) -> list[Finding]:
        findings = list(self._findings)
        for (rule, path), count in self._counts.items():
            if count > FINDINGS_PER_RULE_AND_FILE:
                more = count - FINDINGS_PER_RULE_AND_FILE
                first = next(f for f in findings if f.rule == rule and f.path == path)
                message = f"{more} more of this kind"
                findings.append(Finding(first.severity, path, None, rule, message, first.repair))
        return findings
