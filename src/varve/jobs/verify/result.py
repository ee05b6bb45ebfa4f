"""What a verification looked at, partition by partition, and what it found."""

from dataclasses import dataclass

from varve.jobs.results import JobResult
from varve.jobs.verify.findings import VerifyFinding
from varve.tiering.manifest.paths import RemotePath


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVerdict:
    """One readable segment, as the manifest has it and as it was found.

    `first_timestamp` is that of its first batch, -1 where it is not known.
    """

    id: str
    base_offset: int
    end_offset: int
    size: int
    stored_bytes: int
    record_count: int
    first_timestamp: int
    max_timestamp: int
    stale_bytes: int | None
    finding_count: int
    damage_count: int

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "base_offset": self.base_offset,
            "end_offset": self.end_offset,
            "size": self.size,
            "stored_bytes": self.stored_bytes,
            "records": self.record_count,
            "first_timestamp": self.first_timestamp,
            "max_timestamp": self.max_timestamp,
            "stale_bytes": self.stale_bytes,
            "findings": self.finding_count,
            "damage": self.damage_count,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """One partition; `objects` and `bytes` count by class, as an account of the tier does."""

    home: RemotePath
    manifest_version: int
    log_start_offset: int
    cleaned_up_to: int
    segments: tuple[SegmentVerdict, ...]
    findings: tuple[VerifyFinding, ...]
    objects: dict[str, int]
    bytes: dict[str, int]
    verified_bytes: int

    @property
    def damage_count(self) -> int:
        return sum(one.is_damage for one in self.findings)

    @property
    def log_bytes(self) -> int:
        return sum(one.size for one in self.segments)

    @property
    def record_count(self) -> int:
        return sum(one.record_count for one in self.segments)

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.home.topic,
            "topic_id": self.home.topic_id,
            "partition": self.home.partition,
            "manifest_version": self.manifest_version,
            "log_start_offset": self.log_start_offset,
            "cleaned_up_to": self.cleaned_up_to,
            "segments": [one.to_json() for one in self.segments],
            "records": self.record_count,
            "log_bytes": self.log_bytes,
            "objects": self.objects,
            "bytes": self.bytes,
            "verified_bytes": self.verified_bytes,
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
    others: tuple[VerifyFinding, ...] = ()
    directory: str | None = None

    @property
    def findings(self) -> list[VerifyFinding]:
        of_partitions = [one for partition in self.partitions for one in partition.findings]
        return [*of_partitions, *self.others]

    @property
    def has_damage(self) -> bool:
        return any(one.is_damage for one in self.findings)

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(f"{one.where}: {one.message}" for one in self.findings if one.is_damage)

    @property
    def verified_bytes(self) -> int:
        return sum(one.verified_bytes for one in self.partitions)

    def to_json(self) -> dict[str, object]:
        return {
            "store": self.store,
            "directory": self.directory,
            "started_ms": self.started_ms,
            "elapsed_ms": self.elapsed_ms,
            "verified_bytes": self.verified_bytes,
            "has_damage": self.has_damage,
            "partitions": [one.to_json() for one in self.partitions],
            "findings": [one.to_json() for one in self.findings],
        }
