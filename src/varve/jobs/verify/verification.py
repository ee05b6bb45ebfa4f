"""Verifies remote segments: every object, every segment, every key.

1. One task per partition compares the manifests with the objects.
2. One task per few segments reads all their objects, and compares them with each other.
3. One task per range of hashes finds keys that occur twice below the first dirty offset.

Invariant  reads only, while stores and jobs may run; it may be stopped at any point and run again.
           It holds the lock of a log directory while it reads it; a directory that a store has open
           is not read, and a finding says so.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from varve.cleaning.compaction.key_plan import ENTRY_BYTES
from varve.cleaning.key_index.key_index import KeyIndexHeader
from varve.cleaning.key_index.segment_indexes import check_key_indexes
from varve.commit_log.check import hold_lock, inspect_directory
from varve.commit_log.check.findings import Finding
from varve.commit_log.check.partition import PartitionContext, PartitionFacts
from varve.commit_log.directory_files import decode_topic_id
from varve.commit_log.names import LOG_START_OFFSET_FILE, TopicPartition
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.disk import FileSystem, RealFileSystem
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import Corrupt, Locked, ObjectNotFound, StoreError
from varve.jobs.compact.tasks import RangeInputs
from varve.jobs.key_plans import cut_hashes
from varve.jobs.source.record_blocks import aborted_within
from varve.jobs.tasks import (
    Stage,
    Stages,
    TaskError,
    TaskRunner,
    pack_by_size,
    run_together,
    try_stage,
)
from varve.jobs.tier.bucket import Bucket, BucketAccess, find_topic, find_topics
from varve.jobs.verify.keys import LATEST_RULES, SupersededKeys, UniqueTask
from varve.jobs.verify.manifests import ManifestTask, PartitionView
from varve.jobs.verify.result import (
    PartitionVerdict,
    SegmentVerdict,
    VerifyFinding,
    VerifyResult,
    gravest_first,
)
from varve.jobs.verify.segments import SegmentOutcome, SegmentsTask, SegmentWork
from varve.object_store import ObjectStore
from varve.tiering.history_check import LocalPart, find_holes, find_lost
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.partition import get_remote_path
from varve.tiering.restore import read_cluster
from varve.topics.outputs import RemoteOutputRegistry

T = TypeVar("T")

TASK_BYTES: Final = 256 << 20
"""Approximate bytes that one task reads."""
_BUFFER_BYTES: Final = 128 << 20
_RANGE_BYTES: Final = 64 << 20
_REPAIR: Final = "`varve check --repair`"


def verify(
    address: Bucket,
    topics: Sequence[str] = (),
    *,
    runner: TaskRunner,
    directories: Sequence[str] = (),
    clock: Clock | None = None,
) -> VerifyResult:
    """Verifies these topics, or all topics of the cluster, and log directories if given.

    Raises NotFound for a topic that the tier does not hold. Damage is in the result.
    """
    clock = clock or SystemClock()
    began_ms = clock.now_ms()
    remote_topics = (
        [find_topic(address, name) for name in topics] if topics else find_topics(address)
    )
    others = [
        finding
        for topic in remote_topics
        if topic.partitions
        for finding in verify_documents(
            address.objects(), topic.cluster, topic.name, topic.topic_id
        )
    ]
    partitions = verify_partitions(
        address,
        [partition for topic in remote_topics for partition in topic.partitions],
        runner=runner,
        now_ms=began_ms,
    )
    for directory in directories:
        others += verify_directory(RealFileSystem(), directory, address, now_ms=began_ms)
    return VerifyResult(
        store=address.objects().name,
        started_ms=began_ms,
        elapsed_ms=clock.now_ms() - began_ms,
        partitions=partitions,
        others=tuple(gravest_first(others)),
        directory=", ".join(directories) or None,
    )


def verify_partitions(
    bucket: BucketAccess,
    partitions: Sequence[RemotePath],
    *,
    runner: TaskRunner,
    now_ms: int,
    task_bytes: int = TASK_BYTES,
    buffer_bytes: int = _BUFFER_BYTES,
    range_bytes: int = _RANGE_BYTES,
) -> tuple[PartitionVerdict, ...]:
    """Verifies partitions; the tasks of a stage run together for all of them."""
    runs = [
        _PartitionRun(bucket, partition, now_ms, task_bytes, range_bytes, buffer_bytes).stages()
        for partition in partitions
    ]
    return tuple(run_together(runs, runner))


@dataclass
class _PartitionRun:
    """The verification of one partition.

    A task reads about `task_bytes` of segments or `range_bytes` of key indexes, and uses
    `buffer_bytes` of memory for keys.
    """

    bucket: BucketAccess
    partition: RemotePath
    now_ms: int
    task_bytes: int
    range_bytes: int
    buffer_bytes: int
    view: PartitionView = field(init=False)
    outcomes: dict[str, SegmentOutcome] = field(default_factory=dict)
    findings: list[VerifyFinding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.view = PartitionView(partition=self.partition, manifest_version=0)

    def stages(self) -> Stages[PartitionVerdict]:
        """Runs all stages; a failed task becomes a finding, and later stages skip its segments."""
        manifest_task = ManifestTask(self.bucket, self.partition, self.now_ms)
        for view in (yield from self._run_stage(Stage("manifests", [manifest_task]))):
            self.view = view
            self.findings += view.findings
        segment_tasks = self._segment_tasks()
        for outcomes in (yield from self._run_stage(Stage("segments", segment_tasks))):
            for segment in outcomes:
                self.outcomes[segment.id] = segment
                self.findings += segment.findings
        clean = self._find_clean_segments()
        inputs = RangeInputs(
            self.bucket,
            self.partition,
            tuple(segment for segment, _ in clean),
            tuple(header for _, header in clean),
            LATEST_RULES,
            self.buffer_bytes,
        )
        entries = sum(header.entry_count for _, header in clean)
        ranges = cut_hashes(-(-entries * ENTRY_BYTES // self.range_bytes)) if clean else []
        tasks = [UniqueTask(hashes) for hashes in ranges]
        keys = yield from self._run_stage(Stage("keys", tasks, inputs))
        if clean and len(keys) == len(tasks):
            self.findings += self._judge_keys(clean, keys)
        return self._verdict()

    def _run_stage(self, stage: Stage[T]) -> Stages[list[T]]:
        """Runs a stage; returns the results of the tasks that did not fail."""
        results: list[T] = []
        for outcome in (yield from try_stage(stage)):
            if isinstance(outcome, TaskError):
                message = f"{stage.name}: {outcome.error}"
                where = self.partition.prefix
                self.findings.append(VerifyFinding.of("not-verified", where, message))
            else:
                results.append(outcome)
        return results

    def _segment_tasks(self) -> list[SegmentsTask]:
        view = self.view
        topic_id = decode_topic_id(self.partition.topic_id).bytes
        return [
            SegmentsTask(
                bucket=self.bucket,
                partition=self.partition,
                works=tuple(works),
                aborted=aborted_within(
                    view.aborted,
                    start_offset=works[0].segment.base_offset,
                    end_offset=works[-1].segment.end_offset + 1,
                ),
                trusted_end=view.trusted_end,
                log_start_offset=view.log_start_offset,
                topic_id=topic_id,
                now_ms=self.now_ms,
                buffer_bytes=self.buffer_bytes,
            )
            for works in pack_by_size(
                self._works(), lambda work: work.segment.stored_bytes, target_bytes=self.task_bytes
            )
        ]

    def _works(self) -> Iterator[SegmentWork]:
        previous: RemoteSegment | None = None
        for segment in self.view.readable:
            follows = (
                previous is not None
                and previous.end_offset + 1 == segment.base_offset
                and previous.epochs[-1][0] <= segment.epochs[0][0]
            )
            missing = frozenset(
                part.name
                for part in segment.parts
                if self.partition.part_key(segment, part.name) in self.view.damaged
            )
            yield SegmentWork(segment, previous if follows else None, missing)
            previous = segment

    def _find_clean_segments(self) -> list[tuple[RemoteSegment, KeyIndexHeader]]:
        """Returns the clean segments with a correct key index, and its header."""
        view = self.view
        clean: list[tuple[RemoteSegment, KeyIndexHeader]] = []
        for segment in view.readable:
            outcome = self.outcomes.get(segment.id)
            is_clean = view.log_start_offset <= segment.end_offset < view.cleaned_up_to
            if is_clean and outcome is not None and outcome.header is not None:
                clean.append((segment, outcome.header))
        return clean

    def _judge_keys(
        self,
        clean: Sequence[tuple[RemoteSegment, KeyIndexHeader]],
        ranges: Sequence[SupersededKeys],
    ) -> Iterator[VerifyFinding]:
        for number, (segment, header) in enumerate(clean):
            total = ranges[0].total_bytes[number]
            stale = header.record_bytes - sum(part.kept_bytes[number] for part in ranges)
            # The manifest has rounded stale bytes, scaled to the size of the data file.
            expected = stale / total * segment.size if total else 0.0
            recorded = segment.stale_bytes or 0
            if expected >= recorded + 1:
                count = sum(part.counts[number] for part in ranges)
                examples = [part.examples[number] for part in ranges]
                offset = next((example for example in examples if example is not None), None)
                yield self._superseded_finding(segment, round(expected), count, offset)

    def _superseded_finding(
        self, segment: RemoteSegment, stale_bytes: int, count: int, offset: int | None
    ) -> VerifyFinding:
        return VerifyFinding.of(
            "keys-undercounted" if segment.stale_bytes else "keys-twice",
            self.partition.part_key(segment, "log"),
            f"{count} records are superseded by later ones below the first dirty offset "
            f"{self.view.cleaned_up_to}",
            base_offset=segment.base_offset,
            offset=offset,
            expected=f"at most {segment.stale_bytes or 0} stale bytes",
            found=f"about {stale_bytes}",
        )

    def _verdict(self) -> PartitionVerdict:
        view = self.view
        findings = [
            finding.within(self.partition.topic, self.partition.partition)
            for finding in gravest_first(self.findings)
        ]
        by_base: dict[int | None, list[VerifyFinding]] = {}
        for finding in findings:
            by_base.setdefault(finding.base_offset, []).append(finding)
        return PartitionVerdict(
            partition=self.partition,
            manifest_version=view.manifest_version,
            log_start_offset=view.log_start_offset,
            cleaned_up_to=view.cleaned_up_to,
            segments=tuple(
                self._segment_verdict(segment, by_base.get(segment.base_offset, []))
                for segment in view.readable
            ),
            findings=tuple(findings),
            objects=view.objects,
            bytes=view.bytes,
            verified_bytes=sum(finding.verified_bytes for finding in self.outcomes.values()),
        )

    def _segment_verdict(
        self, segment: RemoteSegment, findings: Sequence[VerifyFinding]
    ) -> SegmentVerdict:
        outcome = self.outcomes.get(segment.id)
        return SegmentVerdict(
            id=segment.id,
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size=segment.size,
            stored_bytes=segment.stored_bytes,
            record_count=segment.record_count,
            first_timestamp=-1 if outcome is None else outcome.first_timestamp,
            max_timestamp=segment.max_timestamp,
            stale_bytes=segment.stale_bytes,
            finding_count=len(findings),
            damage_count=sum(finding.is_damage for finding in findings),
        )


# Documents of a topic


def verify_documents(
    objects: ObjectStore, cluster: str, topic: str, topic_id: str
) -> Iterator[VerifyFinding]:
    """Finds registered outputs and receipts of a topic that cannot be read."""
    try:
        RemoteOutputRegistry(objects, cluster).find(topic, topic_id)
    except Corrupt as error:
        key, _, message = str(error).partition(": ")
        yield _corrupt(topic, key, message)
    for entry in objects.list(f"{cluster}/{topic}.{topic_id}/receipt/"):
        if entry.key.endswith(".json"):
            try:
                json.loads(objects.get(entry.key))
            except ObjectNotFound:
                continue  # Removed since it was listed.
            except ValueError as error:
                yield _corrupt(topic, entry.key, f"not JSON: {error}")


def _corrupt(topic: str, key: str, message: str) -> VerifyFinding:
    return VerifyFinding.of("note-corrupt", key, message, topic=topic)


# The log directory


def verify_directory(
    fs: FileSystem, directory: str, bucket: BucketAccess, *, now_ms: int
) -> list[VerifyFinding]:
    """Verifies a log directory, and that local and remote segments have all offsets."""
    try:
        with hold_lock(fs, directory):
            context = PartitionContext(now_ms=now_ms, deep=True)
            facts = inspect_directory(fs, directory, context)
            findings = [
                _translate_finding(finding)
                for finding in (*facts.findings, *check_key_indexes(fs, facts))
            ]
            starts = _read_starts(fs, directory)
            cluster = read_cluster(fs, directory)
            for partition, partition_facts in sorted(facts.partitions.items()):
                findings += _check_join(
                    partition, partition_facts, starts.get(partition), cluster, bucket
                )
            return findings
    except Locked as error:
        return [VerifyFinding.of("directory-in-use", directory, str(error))]


def _read_starts(fs: FileSystem, directory: str) -> dict[TopicPartition, int]:
    path = f"{directory}/{LOG_START_OFFSET_FILE}"
    return decode_offsets(fs.read(path), where=path) if fs.exists(path) else {}


def _translate_finding(finding: Finding) -> VerifyFinding:
    return VerifyFinding(
        severity=finding.severity,
        rule=finding.rule,
        where=finding.path,
        message=finding.message,
        remedy="" if finding.repair is None else f"{_REPAIR}: {finding.repair}",
        position=finding.position,
    )


def _check_join(
    partition: TopicPartition,
    facts: PartitionFacts,
    log_start_offset: int | None,
    cluster: str | None,
    bucket: BucketAccess,
) -> Iterator[VerifyFinding]:
    """Finds offsets from the log start on that no local or remote segment has."""
    if facts.topic_id is None or cluster is None:
        return
    try:
        manifests = bucket.manifests(get_remote_path(partition, facts.topic_id, cluster))
        manifest = manifests.load()
    except StoreError:
        return  # Reported with the remote segments of the partition.
    if manifest.version == 0:
        return
    local = LocalPart(
        log_start_offset=log_start_offset,
        local_start_offset=facts.first_base_offset,
        end_offset=facts.end_offset,
        epochs=facts.history.entries,
    )
    faults = [
        (
            "tier-hole",
            start,
            f"offsets {start} to {end - 1} are in no local and in no remote segment",
        )
        for start, end in find_holes(manifests, manifest, local)
    ]
    lost = find_lost(manifests, manifest, local)
    if lost is not None:
        end, copied_end = lost
        message = f"the log ends at offset {end}, its remote segments of the latest epoch at "
        faults.append(("tier-lost-tail", end, f"{message}{copied_end}"))
    for rule, offset, message in faults:
        yield VerifyFinding.of(
            rule,
            facts.directory,
            message,
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
        )
