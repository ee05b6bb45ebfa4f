"""Results of a verification: findings with their rule, location and remedy, by partition.

Invariant  every finding names a rule, either of VERIFY_RULES or of `commit_log.check.findings`.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from varve.commit_log.check.findings import RULES, Severity
from varve.jobs.results import JSON_NAME, JobResult, JsonFields, encode_fields
from varve.tiering.manifest.paths import RemotePath

PUT_BACK: Final = "restore it from a mirror or a copy (`varve tier mirror --repair`)"


@dataclass(frozen=True, slots=True)
class VerifyRule:
    """A rule that must hold, the severity of breaking it, and the remedy."""

    text: str
    severity: Severity = Severity.ERROR
    remedy: str = PUT_BACK

    def __str__(self) -> str:
        return self.text


_WARNING, _NOTE = Severity.WARNING, Severity.NOTE
_RESTORE: Final = "`varve tier restore` into another directory restores all remote segments"
_FORCE: Final = "`varve job compact --force` removes them; the latest record of a key is unaffected"

VERIFY_RULES: Final[dict[str, VerifyRule]] = {
    "object-missing": VerifyRule("Every object that the newest manifest names exists."),
    "object-size": VerifyRule("An object has the size in the manifest."),
    "object-checksum": VerifyRule("An object has the CRC-32C in the manifest."),
    "manifest-unreadable": VerifyRule(
        "The newest manifest, the older ones and their pages can be read.",
        remedy="restore the missing objects from a mirror or a copy",
    ),
    "segment-figures": VerifyRule(
        "The figures of a segment in the manifest are those of its objects.",
        remedy="`varve tier restore --at` an older manifest, or copy it again",
    ),
    "segment-offsets": VerifyRule("The batches of a segment are within its offsets."),
    "segment-epochs": VerifyRule(
        "The leader epochs of a segment in the manifest are those of its epochs object."
    ),
    "chain-hole": VerifyRule(
        "Segments follow each other from the log start on without a gap.",
        remedy="`varve tier restore --at` an older manifest may still have the offsets",
    ),
    "chain-overlap": VerifyRule(
        "No offset is in two readable segments.",
        remedy="`varve tier restore --at` a manifest from before the overlap",
    ),
    "chain-left": VerifyRule(
        "All readable segments belong to one history.",
        _NOTE,
        "nothing: compaction skips it, and it is replaced when the log is copied up to there",
    ),
    "keys-untrue": VerifyRule(
        "A key index lists the latest record of each key of its segment, and no other.",
        remedy="delete the object; `varve job compact` builds it again",
    ),
    "keys-twice": VerifyRule(
        "Below the first dirty offset a key occurs once, except in stale bytes of the manifest.",
        remedy=_FORCE,
    ),
    "keys-undercounted": VerifyRule(
        "The manifest counts all stale bytes below the first dirty offset.", _WARNING, _FORCE
    ),
    "retained-missing": VerifyRule(
        "Objects that readers of older manifests may need exist.",
        _WARNING,
        f"readers of the newest manifest do not need it; {PUT_BACK}",
    ),
    "orphan": VerifyRule(
        "A manifest names every object.",
        _WARNING,
        "`varve tier fsck --sweep` deletes it",
    ),
    "foreign": VerifyRule(
        "Every object has a name in the layout of varve.",
        _NOTE,
        "varve never changes it; delete it if nothing needs it",
    ),
    "abandoned": VerifyRule(
        "An announced copy is completed or withdrawn within a day.",
        _NOTE,
        "the next copy or the next job withdraws it",
    ),
    "evidence-corrupt": VerifyRule("The evidence of removals can be read and adds up."),
    "note-corrupt": VerifyRule("The registered outputs and the receipts of a topic can be read."),
    "not-verified": VerifyRule("Every object could be read.", remedy="run the verification again"),
    "directory-in-use": VerifyRule(
        "The log directory could be read.",
        _NOTE,
        "close the store and verify again, or `varve check --no-lock`",
    ),
    "tier-hole": VerifyRule(
        "Every offset from the log start on is in a local or a remote segment.", remedy=_RESTORE
    ),
    "tier-lost-tail": VerifyRule(
        "The local log has all offsets that were copied of its latest epoch.", remedy=_RESTORE
    ),
}
_LOCAL_RULE: Final = VerifyRule("A rule of `commit_log.check.findings`.")
_ORDER: Final = list(Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFinding(JsonFields):
    """One broken rule.

    `where` is the key of an object, a folder of keys or a path; `position` is a byte position in
    it, `offset` the offset of a record. `partition` is None for a topic or a log directory.
    """

    severity: Severity = Severity.ERROR
    rule: str
    where: str
    message: str
    remedy: str = ""
    topic: str = ""
    partition: int | None = None
    base_offset: int | None = None
    """The base offset of the segment, None if the finding is not about a segment."""
    position: int | None = None
    offset: int | None = None
    expected: str = ""
    found: str = ""

    def __post_init__(self) -> None:
        assert self.rule in VERIFY_RULES or self.rule in RULES, f"{self.rule} is not a rule"

    @classmethod
    def of(cls, rule: str, where: str, message: str, **details: Any) -> "VerifyFinding":
        """Creates a finding with the severity and remedy of its rule, unless `details` set them."""
        declared = VERIFY_RULES.get(rule, _LOCAL_RULE)
        defaults = {"severity": declared.severity, "remedy": declared.remedy}
        return cls(rule=rule, where=where, message=message, **{**defaults, **details})

    @property
    def is_damage(self) -> bool:
        return self.severity is Severity.ERROR

    @property
    def place(self) -> str:
        """The location of the finding, as text."""
        words = [self.where]
        if self.position is not None:
            words.append(f"at byte {self.position}")
        if self.offset is not None:
            words.append(f"offset {self.offset}")
        return " ".join(words)

    def within(self, topic: str, partition: int | None = None) -> "VerifyFinding":
        return replace(self, topic=topic, partition=partition)


def gravest_first(findings: list[VerifyFinding]) -> list[VerifyFinding]:
    """Sorts findings by severity, then by location and rule."""
    return sorted(
        findings, key=lambda finding: (_ORDER.index(finding.severity), finding.where, finding.rule)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVerdict(JsonFields):
    """One readable segment with the figures of the manifest, and its number of findings.

    `first_timestamp` is the base timestamp of its first batch, -1 if it is unknown.
    """

    id: str
    base_offset: int
    end_offset: int
    size: int
    stored_bytes: int
    record_count: int = field(metadata={JSON_NAME: "records"})
    first_timestamp: int
    max_timestamp: int
    stale_bytes: int | None
    finding_count: int = field(metadata={JSON_NAME: "findings"})
    damage_count: int = field(metadata={JSON_NAME: "damage"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """The result for one partition; `objects` and `bytes` count by the object classes of fsck."""

    partition: RemotePath = field(metadata={JSON_NAME: None})
    manifest_version: int
    log_start_offset: int
    cleaned_up_to: int
    segments: tuple[SegmentVerdict, ...]
    findings: tuple[VerifyFinding, ...] = field(metadata={JSON_NAME: None})
    objects: dict[str, int]
    bytes: dict[str, int]
    verified_bytes: int

    @property
    def damage_count(self) -> int:
        return sum(finding.is_damage for finding in self.findings)

    @property
    def log_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def record_count(self) -> int:
        return sum(segment.record_count for segment in self.segments)

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic,
            "topic_id": self.partition.topic_id,
            "partition": self.partition.partition,
            **encode_fields(self),
            "records": self.record_count,
            "log_bytes": self.log_bytes,
            "findings": len(self.findings),
            "damage": self.damage_count,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult(JobResult):
    """The result of a verification; `others` are findings about topics and the log directory."""

    store: str
    started_ms: int
    elapsed_ms: int
    partitions: tuple[PartitionVerdict, ...]
    others: tuple[VerifyFinding, ...] = field(default=(), metadata={JSON_NAME: None})
    directory: str | None = None

    @property
    def findings(self) -> list[VerifyFinding]:
        of_partitions = [finding for partition in self.partitions for finding in partition.findings]
        return [*of_partitions, *self.others]

    @property
    def has_damage(self) -> bool:
        return any(finding.is_damage for finding in self.findings)

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(
            f"{finding.where}: {finding.message}" for finding in self.findings if finding.is_damage
        )

    @property
    def verified_bytes(self) -> int:
        return sum(partition.verified_bytes for partition in self.partitions)

    def to_json(self) -> dict[str, object]:
        return {
            **encode_fields(self),
            "verified_bytes": self.verified_bytes,
            "has_damage": self.has_damage,
            "findings": [finding.to_json() for finding in self.findings],
        }
