"""What a verification looked at, partition by partition, and what it found: where, what was
expected and what is there, and what repairs it.

Invariant  every finding names a rule, of those below or of `commit_log.check.findings`.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from varve.commit_log.check.findings import RULES, Severity
from varve.jobs.results import JSON_NAME, JobResult, JsonFields, encode_fields
from varve.tiering.manifest.paths import RemotePath

VERIFY_RULES: Final[dict[str, str]] = {
    "object-missing": "Every object that the newest manifest names is there.",
    "object-size": "An object has the size that the manifest says.",
    "object-checksum": "An object has the CRC-32C that the manifest says.",
    "manifest-unreadable": "The newest manifest, the older ones and their pages can be read.",
    "segment-figures": "The manifest says of a segment what its objects hold.",
    "segment-offsets": "A segment's batches lie within its offsets.",
    "segment-epochs": "The leader epochs of the manifest are those beside the segment.",
    "chain-hole": "Segments follow each other from the log start on without a hole.",
    "chain-overlap": "No offset is in two readable segments.",
    "chain-left": "All readable segments are of one history.",
    "keys-untrue": "A key index lists the latest record of each key of its segment, and no other.",
    "keys-twice": "Below the clean bound a key occurs once, but for what the manifest calls stale.",
    "keys-undercounted": "The manifest knows of all stale bytes below the clean bound.",
    "retained-missing": "Objects that readers of older manifests may rely on are there.",
    "orphan": "No object is there that no manifest names.",
    "foreign": "No object has a name that is not varve's.",
    "abandoned": "No announced copy was left for a day.",
    "evidence-corrupt": "The evidence of removals can be read and adds up.",
    "note-corrupt": "The notes of outputs and the receipts of a topic can be read.",
    "not-verified": "Everything could be looked at.",
    "directory-in-use": "The log directory could be looked at.",
    "tier-hole": "Every offset from the log start on is in one of the tiers.",
    "tier-lost-tail": "The local log has what was copied of its latest epoch.",
}

PUT_BACK: Final = "put it back from a mirror or a copy (`varve tier mirror --repair`)"
SWEEP: Final = "`varve tier fsck --sweep` removes it"
_ORDER: Final = list(Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFinding(JsonFields):
    """One broken rule.

    `where` is an object's key, a folder of keys or a path; `position` counts bytes in it, `offset`
    records. `partition` is None for what is wrong with a topic as a whole or a directory.
    """

    severity: Severity = Severity.ERROR
    rule: str
    where: str
    message: str
    remedy: str = ""
    topic: str = ""
    partition: int | None = None
    base_offset: int | None = None
    """Of the segment, where it is one's."""
    position: int | None = None
    offset: int | None = None
    expected: str = ""
    found: str = ""

    def __post_init__(self) -> None:
        assert self.rule in VERIFY_RULES or self.rule in RULES, f"{self.rule} is not a rule"

    @property
    def is_damage(self) -> bool:
        return self.severity is Severity.ERROR

    @property
    def place(self) -> str:
        """Where it is, in words."""
        words = [self.where]
        if self.position is not None:
            words.append(f"at byte {self.position}")
        if self.offset is not None:
            words.append(f"offset {self.offset}")
        return " ".join(words)

    def within(self, topic: str, partition: int | None = None) -> "VerifyFinding":
        return replace(self, topic=topic, partition=partition)


def gravest_first(findings: list[VerifyFinding]) -> list[VerifyFinding]:
    """In the order of a report."""
    return sorted(
        findings, key=lambda finding: (_ORDER.index(finding.severity), finding.where, finding.rule)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVerdict(JsonFields):
    """One readable segment, as the manifest has it and as it was found.

    `first_timestamp` is that of its first batch, -1 where it is not known.
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
    """One partition; `objects` and `bytes` count by class, as an account of the tier does."""

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
    """A whole verification; `others` are findings about topics and the log directory."""

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
