"""Verifies the cold tier: every object, every segment, every key, by tasks that run anywhere.

1. One task per partition holds manifests against objects.
2. One task per few segments reads all their objects, and holds them against each other.
3. One task per range of hashes looks for keys that occur twice below the clean bound.

Invariant  reads only, beside running stores and jobs; it may be ended anywhere and run again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from varve.cleaning.compaction.key_plan import ENTRY_BYTES
from varve.cleaning.key_index.key_index import KeyIndexHeader
from varve.commit_log.finding import Severity
from varve.commit_log.partition_metadata import decode_topic_id
from varve.disk import RealFileSystem
from varve.foundation.clock import Clock, SystemClock
from varve.jobs.key_plans import cut_hashes
from varve.jobs.tasks import Task, TaskError, TaskRunner, pack_by_size
from varve.jobs.tier.address import ColdTopic, TierAddress, find_topic, find_topics
from varve.jobs.tier.reach import AddressReach, TierReach
from varve.jobs.verify.account import AccountTask, PartitionView
from varve.jobs.verify.directory import verify_directory
from varve.jobs.verify.findings import VerifyFinding, gravest_first
from varve.jobs.verify.keys import SupersededKeys, UniqueTask
from varve.jobs.verify.notes import verify_notes
from varve.jobs.verify.result import PartitionVerdict, SegmentVerdict, VerifyResult
from varve.jobs.verify.segment import SegmentOutcome, SegmentsTask, SegmentWork
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment

T = TypeVar("T")

TASK_BYTES: Final = 256 << 20
"""About how much one task reads."""
_BUFFER_BYTES: Final = 128 << 20
_RANGE_BYTES: Final = 64 << 20


def verify(
    address: TierAddress,
    topics: Sequence[str] = (),
    *,
    runner: TaskRunner,
    directory: str | None = None,
    clock: Clock | None = None,
) -> VerifyResult:
    """Verifies these topics, or all of the cluster; with `directory`, that log directory too.

    Raises NotFound for a topic that the tier does not hold. Damage is told in the result.
    """
    clock = clock or SystemClock()
    began_ms = clock.now_ms()
    found = [find_topic(address, name) for name in topics] if topics else find_topics(address)
    reach = AddressReach(address)
    others = [one for topic in found for one in _notes_of(reach, topic)]
    partitions = verify_partitions(
        reach,
        [home for topic in found for home in topic.partitions],
        runner=runner,
        now_ms=began_ms,
    )
    if directory is not None:
        others += verify_directory(RealFileSystem(), directory, reach, now_ms=began_ms)
    return VerifyResult(
        store=reach.objects().name,
        started_ms=began_ms,
        elapsed_ms=clock.now_ms() - began_ms,
        partitions=partitions,
        others=tuple(gravest_first(others)),
        directory=directory,
    )


def _notes_of(reach: TierReach, topic: ColdTopic) -> Iterator[VerifyFinding]:
    if topic.partitions:
        cluster = topic.partitions[0].cluster
        yield from verify_notes(reach.objects(), cluster, topic.name, topic.topic_id)


def verify_partitions(
    reach: TierReach,
    homes: Sequence[RemotePath],
    *,
    runner: TaskRunner,
    now_ms: int,
    task_bytes: int = TASK_BYTES,
    buffer_bytes: int = _BUFFER_BYTES,
    range_bytes: int = _RANGE_BYTES,
) -> tuple[PartitionVerdict, ...]:
    """Verifies these partitions, all at once."""
    runs = [_PartitionRun(reach, home, now_ms, buffer_bytes) for home in homes]
    _run_stage(runner, "account", [(run, [run.account_task()]) for run in runs])
    _run_stage(runner, "segments", [(run, run.segment_tasks(task_bytes)) for run in runs])
    _run_stage(runner, "keys", [(run, run.key_tasks(range_bytes)) for run in runs])
    return tuple(run.verdict() for run in runs)


def _run_stage(
    runner: TaskRunner,
    stage: str,
    work: "Sequence[tuple[_PartitionRun, Sequence[Task[Any]]]]",
) -> None:
    """The tasks of all runs at once; each run takes the outcomes of its own."""
    tasks = [task for _, own in work for task in own]
    outcomes = runner.try_run(stage, tasks)
    for run, own in work:
        run.take(stage, own, [next(outcomes) for _ in own])


class _PartitionRun:
    """What is known of one partition so far."""

    def __init__(self, reach: TierReach, home: RemotePath, now_ms: int, buffer_bytes: int) -> None:
        self._reach = reach
        self._home = home
        self._now_ms = now_ms
        self._buffer_bytes = buffer_bytes
        self._view = PartitionView(home=home, manifest_version=0)
        self._outcomes: dict[str, SegmentOutcome] = {}
        self._findings: list[VerifyFinding] = []

    # Tasks

    def account_task(self) -> AccountTask:
        return AccountTask(self._reach, self._home, self._now_ms)

    def segment_tasks(self, task_bytes: int) -> list[SegmentsTask]:
        view = self._view
        topic_id = decode_topic_id(self._home.topic_id).bytes
        return [
            SegmentsTask(
                reach=self._reach,
                home=self._home,
                works=tuple(works),
                aborted=tuple(
                    one
                    for one in view.aborted
                    if one.first_offset <= works[-1].segment.end_offset
                    and one.last_offset >= works[0].segment.base_offset
                ),
                trusted_from=view.trusted_from,
                log_start_offset=view.log_start_offset,
                topic_id=topic_id,
                now_ms=self._now_ms,
                buffer_bytes=self._buffer_bytes,
            )
            for works in pack_by_size(
                self._works(),
                lambda work: work.segment.stored_bytes,
                target_bytes=task_bytes,
            )
        ]

    def _works(self) -> Iterator[SegmentWork]:
        previous: RemoteSegment | None = None
        for one in self._view.readable:
            follows = (
                previous is not None
                and previous.end_offset + 1 == one.base_offset
                and previous.epochs[-1][0] <= one.epochs[0][0]
            )
            missing = frozenset(
                part.name
                for part in one.parts
                if self._home.part_key(one, part.name) in self._view.damaged
            )
            yield SegmentWork(one, previous if follows else None, missing)
            previous = one

    def key_tasks(self, range_bytes: int) -> list[UniqueTask]:
        clean = self._clean_segments()
        if len(clean) == 0:
            return []
        segments = tuple(segment for segment, _ in clean)
        headers = tuple(header for _, header in clean)
        entries = sum(header.entry_count for header in headers)
        count = -(-entries * ENTRY_BYTES // range_bytes)
        return [
            UniqueTask(self._reach, self._home, segments, headers, hashes, self._buffer_bytes)
            for hashes in cut_hashes(count)
        ]

    def _clean_segments(self) -> list[tuple[RemoteSegment, KeyIndexHeader]]:
        """Those below the clean bound whose key index is true."""
        view = self._view
        found = []
        for one in view.readable:
            outcome = self._outcomes.get(one.id)
            is_clean = view.log_start_offset <= one.end_offset < view.cleaned_up_to
            if is_clean and outcome is not None and outcome.header is not None:
                found.append((one, outcome.header))
        return found

    # Outcomes

    def take(self, stage: str, tasks: Sequence[Task[Any]], outcomes: Sequence[object]) -> None:
        good: list[object] = []
        for outcome in outcomes:
            if isinstance(outcome, TaskError):
                self._findings.append(_not_verified(self._home, stage, str(outcome.error)))
            else:
                good.append(outcome)
        if stage == "account":
            for view in _of(PartitionView, good):
                self._view = view
                self._findings += view.findings
        elif stage == "segments":
            for batch in _of(list, good):
                for one in _of(SegmentOutcome, batch):
                    self._outcomes[one.id] = one
                    self._findings += one.findings
        elif len(good) == len(tasks) and good:
            self._findings += self._judge_keys(list(_of(SupersededKeys, good)))

    def _judge_keys(self, ranges: Sequence[SupersededKeys]) -> Iterator[VerifyFinding]:
        for number, (segment, header) in enumerate(self._clean_segments()):
            total = ranges[0].total_bytes[number]
            stale = header.record_bytes - sum(one.kept_bytes[number] for one in ranges)
            # What the manifest says was rounded, and is of the data file's bytes.
            expected = stale / total * segment.size if total else 0.0
            noted = segment.stale_bytes or 0
            if expected >= noted + 1:
                count = sum(one.counts[number] for one in ranges)
                examples = [one.examples[number] for one in ranges]
                offset = next((one for one in examples if one is not None), None)
                yield self._twice(segment, round(expected), count, offset)

    def _twice(
        self, segment: RemoteSegment, stale_bytes: int, count: int, offset: int | None
    ) -> VerifyFinding:
        is_noted = bool(segment.stale_bytes)
        bound = self._view.cleaned_up_to
        return VerifyFinding(
            severity=Severity.WARNING if is_noted else Severity.ERROR,
            rule="keys-undercounted" if is_noted else "keys-twice",
            where=self._home.part_key(segment, "log"),
            message=f"{count} records are superseded by later ones below the clean bound {bound}",
            remedy="`varve job compact --force` removes them; readers are not misled by them",
            base_offset=segment.base_offset,
            offset=offset,
            expected=f"at most {segment.stale_bytes or 0} stale bytes",
            found=f"about {stale_bytes}",
        )

    def verdict(self) -> PartitionVerdict:
        view = self._view
        findings = [
            one.within(self._home.topic, self._home.partition)
            for one in gravest_first(self._findings)
        ]
        by_base: dict[int | None, list[VerifyFinding]] = {}
        for one in findings:
            by_base.setdefault(one.base_offset, []).append(one)
        return PartitionVerdict(
            home=self._home,
            manifest_version=view.manifest_version,
            log_start_offset=view.log_start_offset,
            cleaned_up_to=view.cleaned_up_to,
            segments=tuple(
                self._segment_verdict(one, by_base.get(one.base_offset, []))
                for one in view.readable
            ),
            findings=tuple(findings),
            objects=view.objects,
            bytes=view.bytes,
            verified_bytes=sum(one.verified_bytes for one in self._outcomes.values()),
        )

    def _segment_verdict(
        self, segment: RemoteSegment, own: Sequence[VerifyFinding]
    ) -> SegmentVerdict:
        outcome = self._outcomes.get(segment.id)
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
            finding_count=len(own),
            damage_count=sum(one.is_damage for one in own),
        )


def _of(kind: type[T], outcomes: Iterable[object]) -> Iterator[T]:
    for one in outcomes:
        assert isinstance(one, kind), f"a task gave {type(one).__name__}, not {kind.__name__}"
        yield one


def _not_verified(home: RemotePath, stage: str, message: str) -> VerifyFinding:
    return VerifyFinding(
        severity=Severity.ERROR,
        rule="not-verified",
        where=home.prefix,
        message=f"{stage}: {message}",
        remedy="run it again",
    )
