"""Erases records from topics, on all tiers and in all outputs, and issues a receipt.

1. A search reads all segments and finds those with a match. Damage ends the erasure here, before
   anything is changed.
2. Outputs derived from the topics lose their rows, while the log still has the records.
3. Segments with a match are rewritten, in local logs and then in the remote tier, and the replaced
   files and objects are deleted.
4. A re-scan reads all remaining files and objects. If it finds records that were copied or added
   during the run, another pass follows, up to PASSES_MAX.
5. The receipt is written only after a re-scan without matches.

Invariant  G8: no receipt without a re-scan of every live and retained object that found no match.
Crash      a killed erasure is completed by another run under its id; until then each partition is
           either unchanged or erased.
"""

import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Final

from varve import __version__, embedded
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.commit_log.settings import LAST_ERASURE
from varve.disk import RealFileSystem
from varve.embedded.tier_location import check_remembered, read_location
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, Locked, NotFound, StoreError
from varve.foundation.settings import GivenValue
from varve.jobs.derived_outputs import ErasedOutput, ErasedRows
from varve.jobs.erase.kept_state import KeptStateErasure, remove_served_ids
from varve.jobs.erase.local import LocalErasure
from varve.jobs.erase.receipt import (
    FORMAT,
    ErasureDocuments,
    PartitionErased,
    read_local_erased,
    read_remote_erased,
)
from varve.jobs.erase.receipt_signature import KIND, SigningKey
from varve.jobs.erase.remote import RemoteErasure, estimate_cost
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.result import (
    ErasureCost,
    ErasureFigures,
    ErasureResult,
    OffsetSpool,
    TierFindings,
)
from varve.jobs.erase.scan import HASH_BYTES, Matcher
from varve.jobs.erase.targets import (
    BucketTarget,
    DirectoryTarget,
    ErasureTargets,
    OutputErasure,
    OutputSettings,
    TopicTarget,
    list_unreached,
)
from varve.jobs.erase.tasks import NotErased, Rescan, rescan_local, rescan_remote
from varve.jobs.object_versions import ErasedVersions, erase_remote_versions
from varve.jobs.tasks import TaskRunner, pack_by_size, run_together
from varve.jobs.tier.bucket import Bucket, find_cluster, find_topic
from varve.jobs.tier.remote_files import sweep_scratch
from varve.object_store.metering import default_prices
from varve.tiering.manifest.pages import new_id
from varve.topics.outputs import DerivedOutput, OutputKind

PASSES_MAX: Final = 4
"""Passes over the logs; a later pass erases the matches of the re-scan before it."""
_SALT_BYTES: Final = 16
_HASHES_BYTES: Final = 64 << 20
"""Hashes of keys in memory, for several topics or for one topic with more: 4 million keys."""


@dataclass(frozen=True, slots=True)
class _Matches:
    """The segments with a match, by path or log object, and the search of each partition."""

    names: set[str]
    remote: list[TierFindings]


@dataclass
class Erasure:
    """One run over all reachable targets."""

    targets: ErasureTargets
    request: ErasureRequest
    _: KW_ONLY
    runner: TaskRunner
    clock: Clock
    random: random.Random
    signing_key: SigningKey | None = None

    def __post_init__(self) -> None:
        self._began_ms = self.clock.now_ms()
        self._topics = self.targets.find_all(self.request.topics)
        self._documents = ErasureDocuments(self.targets, self._topics, self.request)
        self._matchers: dict[str, Matcher] = {}
        self._figures = ErasureFigures()
        self._local_changes: dict[str, list[dict[str, Any]]] = {}
        self._removed_keys: set[str] = set()
        self._unmarked: list[str] = []

    def run(self, *, is_dry_run: bool = False, is_finish: bool = False) -> ErasureResult:
        """Erases the records; raises NotErased if the re-scan still finds matches.

        A dry run only counts the matches. `is_finish` completes an erasure under its id after the
        grace time of its replaced objects. Raises Corrupt before the first change if a segment
        that the search reads is damaged.
        """
        self._documents.check()
        if is_finish and not is_dry_run:
            self._check_begun()
        with closing(OffsetSpool()) as self._offsets:
            matches = self._search(waits_for_grace=is_finish and not is_dry_run)
            return self._preview(matches) if is_dry_run else self._erase(matches)

    def _erase(self, matches: _Matches) -> ErasureResult:
        """Records the request first; removes it again if nothing was changed."""
        self._documents.put_request(self.random.randbytes(_SALT_BYTES))
        try:
            return self._run(matches)
        except StoreError:
            with suppress(StoreError):  # The first error is raised.
                if not self._is_begun():
                    self._documents.remove_request()
            raise

    def _preview(self, matches: _Matches) -> ErasureResult:
        remote = self.targets.remote
        cost = None
        if remote is not None:
            cost = estimate_cost(matches.remote, default_prices(remote.bucket.objects().name))
        return self._result(self._out_of_reach({}), is_dry_run=True, cost=cost)

    def _run(self, matches: _Matches) -> ErasureResult:
        erased = self._erase_outputs()
        for passes in range(1, PASSES_MAX + 1):
            if self._rewrite(matches.names):
                self._mark_erased()
                finish_ms = self.clock.now_ms() + self.request.grace_ms
                return self._result(self._out_of_reach(erased), finish_ms=finish_ms)
            rescan = self._rescan()
            if not rescan.matches:
                break
            if passes < PASSES_MAX:
                matches = self._search(only=set(rescan.matches))
        rescan.check()
        self._check_outputs(erased, rescan)
        self._mark_erased()
        document = self._describe(rescan, erased, passes=passes)
        if self.signing_key is not None:
            document = self.signing_key.sign(document)
        stored = self._documents.put_receipt(document)
        result = self._result(document["out_of_reach"])
        return replace(result, receipt=document, receipt_places=stored)

    def _check_begun(self) -> None:
        if self.request.grace_ms:
            raise InvalidRequest("a grace time cannot be given when an erasure is finished")
        if not self._is_begun():
            raise NotFound(
                f"there is no evidence of an erasure {self.request.id}: none was begun under this "
                "id, or it found no records; run it without --finish"
            )

    def _is_begun(self) -> bool:
        return any(done.balances for topic in self._topics for done in self._read_done(topic))

    # Passes over the logs

    def _search(
        self, *, only: Collection[str] | None = None, waits_for_grace: bool = False
    ) -> _Matches:
        """Finds the segments with a match, or those among `only`; changes nothing.

        Adds the figures, and the offsets of records that a field matches, if outputs need them.
        """
        names: set[str] = set()
        remote: list[TierFindings] = []
        for topics in self._groups():
            for topic in topics:
                names.update(self._search_local(topic, only))
            searches = [
                erasure.search(
                    only, waits_for_grace=waits_for_grace, offsets=self._find_spool(topic)
                )
                for topic in topics
                for erasure in self._remote_erasures(topic)
            ]
            remote += run_together(searches, self.runner)
        for findings in remote:
            self._figures.add(findings.figures)
            names.update(findings.matched)
        return _Matches(names, remote)

    def _search_local(self, topic: TopicTarget, only: Collection[str] | None) -> Iterator[str]:
        for local in self._local_erasures(topic):
            directory = f"{local.log.directory}/"
            if only is None or any(name.startswith(directory) for name in only):
                findings = local.search(self._find_spool(topic))
                self._figures.add(findings.figures)
                yield from findings.matched

    def _groups(self) -> Iterator[list[TopicTarget]]:
        """Yields topics that run together: as many as _HASHES_BYTES allow, whose keys are hashed.

        The hashes of a key differ from topic to topic.
        """
        keys, field = self.request.keys, self.request.field
        for topics in pack_by_size(
            self._topics, lambda _: HASH_BYTES * len(keys), target_bytes=_HASHES_BYTES
        ):
            if self._matchers.keys() != {topic.name for topic in topics}:
                self._matchers.clear()
                for topic in topics:
                    self._matchers[topic.name] = Matcher.of(topic.topic_id, keys, field)
            yield topics

    def _find_spool(self, topic: TopicTarget) -> OffsetSpool | None:
        """The spool of matched offsets; None if no output is erased by them."""
        is_by_field = self.request.field is not None and bool(topic.outputs.rows)
        return self._offsets if is_by_field or topic.outputs.has_ids else None

    def _rewrite(self, names: Collection[str]) -> bool:
        """Rewrites the named segments; True if replaced objects wait for their grace time."""
        is_waiting = False
        for topics in self._groups():
            is_waiting |= self._rewrite_group(topics, names)
        return is_waiting

    def _rewrite_group(self, topics: Sequence[TopicTarget], names: Collection[str]) -> bool:
        for topic in topics:
            for local in self._local_erasures(topic):
                self._local_changes.setdefault(local.log.directory, []).extend(
                    change.to_json() for change in local.rewrite(names)
                )
        runs = [
            erasure.rewrite(names) for topic in topics for erasure in self._remote_erasures(topic)
        ]
        remote = run_together(runs, self.runner)
        for changes in remote:
            self._figures.add(changes.figures)
            self._forget_indexes(changes.replaced_ids)
            self._removed_keys |= set(changes.removed_keys)
        for changes in remote:
            if changes.error is not None:
                raise changes.error
        return any(changes.is_waiting for changes in remote)

    def _local_erasures(self, topic: TopicTarget) -> list[LocalErasure]:
        local = self.targets.local
        return [
            LocalErasure(
                log, self._matchers[topic.name], self.request, fs=local.fs, clock=self.clock
            )
            for log in topic.logs
            if local is not None
        ]

    def _remote_erasures(self, topic: TopicTarget) -> list[RemoteErasure]:
        remote = self.targets.remote
        return [
            RemoteErasure(
                partition,
                remote.bucket,
                self._matchers[topic.name],
                self.request,
                clock=self.clock,
                random=self.random,
                owns_copies=bool(topic.logs),
            )
            for partition in topic.partitions
            if remote is not None
        ]

    def _forget_indexes(self, ids: Sequence[str]) -> None:
        """Deletes cached index files of replaced remote segments."""
        local = self.targets.local
        if local is None or not ids:
            return
        for directory in local.directories:
            cache = f"{directory}/{REMOTE_INDEX_CACHE_DIRECTORY}"
            for name in local.fs.names(cache) if local.fs.exists(cache) else ():
                if any(id in name for id in ids):
                    local.fs.remove(f"{cache}/{name}")

    # Outputs

    def _erase_outputs(self) -> dict[str, list[ErasedOutput]]:
        """Erases rows before the log does: a field matches rows by the offsets of its records."""
        return {
            topic.name: [self._erase_output(topic, output) for output in topic.outputs.copies]
            for topic in self._topics
        }

    def _check_outputs(self, erased: dict[str, list[ErasedOutput]], rescan: Rescan) -> None:
        """Counts the remaining rows, and erases those that a job has added during the run."""
        missing = {
            output.output_id
            for outputs in erased.values()
            for output in outputs
            if not output.is_there
        }
        for topic in self._topics:
            for output in topic.outputs.copies:
                if output.id in missing:
                    continue
                if self._count_rows(topic, output):
                    done = self._erase_output(topic, output)
                    erased.setdefault(topic.name, []).append(done)
                    if row_count := self._count_rows(topic, output):
                        reasons = "; ".join(done.out_of_reach)
                        raise NotErased(
                            f"{row_count} rows that were to be erased are still in {output.kind} "
                            f"{output.name} at {output.place}; no receipt is issued: "
                            f"{reasons or 'stop the jobs that write to it and erase again'}"
                        )
                rescan.outputs += 1

    def _output_erasure(self, topic: TopicTarget, output: DerivedOutput) -> OutputErasure:
        local = self.targets.local
        kept = None
        if local is not None:
            kept = KeptStateErasure(
                output, local.store, self.request, fs=local.fs, clock=self.clock
            )
        return OutputErasure(
            output, self.targets.output_settings, self.runner, topic.outputs.rows, kept
        )

    def _erase_output(self, topic: TopicTarget, output: DerivedOutput) -> ErasedOutput:
        erasure = self._output_erasure(topic, output)
        return ErasedOutput.join([erasure.erase(rows) for rows in self._rows(topic, output)])

    def _count_rows(self, topic: TopicTarget, output: DerivedOutput) -> int:
        erasure = self._output_erasure(topic, output)
        return sum(erasure.count(rows) for rows in self._rows(topic, output))

    def _rows(self, topic: TopicTarget, output: DerivedOutput) -> Iterator[ErasedRows]:
        """Yields the rows to erase: keys first, and offsets window by window.

        Rows have the keys of their records; only ids need offsets although keys are erased.
        """
        keys = self.request.keys
        if self.request.field is None and output.kind is not OutputKind.IDS:
            yield ErasedRows(keys, {})
            return
        for offsets in self._offsets.windows(topic.name):
            yield ErasedRows(keys, offsets)
            keys = frozenset()

    def _mark_erased(self) -> None:
        """Shows the erasure to processes that have derived something from the logs.

        Only now: what they derive from here on has no erased record.
        """
        local = self.targets.local
        for topic in self._topics if local is not None else ():
            if not topic.logs or local is None:
                continue
            partitions = [log.topic_partition.partition for log in topic.logs]
            remove_served_ids(local.fs, local.directories, topic.topic_id, partitions)
            mark = f"{self.request.id} at {self.clock.now_ms()}"
            try:
                local.store.alter_topic(topic.name, {LAST_ERASURE: mark})
            except StoreError as error:
                self._unmarked.append(
                    f"Shapes and ids that were derived from {topic.name} in other processes or on "
                    f"other machines: they do not see the erasure ({error})."
                )

    # Re-scan and receipt

    def _rescan(self) -> Rescan:
        rescan = Rescan()
        for topics in self._groups():
            for topic in topics:
                self._rescan_topic(rescan, topic, self._matchers[topic.name])
        return rescan

    def _rescan_topic(self, rescan: Rescan, topic: TopicTarget, matcher: Matcher) -> None:
        if self.targets.remote is not None and topic.partitions:
            rescan_remote(
                rescan,
                self.targets.remote.bucket,
                topic.partitions,
                matcher,
                mode=self.request.rescan,
                runner=self.runner,
            )
        for log in topic.logs:
            assert self.targets.local is not None
            log.flush()
            rescan_local(rescan, self.targets.local.fs, log.directory, matcher)

    def _read_done(self, topic: TopicTarget) -> list[PartitionErased]:
        done: list[PartitionErased] = []
        for partition in topic.partitions:
            assert self.targets.remote is not None
            done.append(read_remote_erased(self.targets.remote.bucket, partition, self.request.id))
        for log in topic.logs:
            assert self.targets.local is not None
            changes = self._local_changes.get(log.directory, [])
            done.append(read_local_erased(self.targets.local.fs, log, self.request.id, changes))
        return done

    def _erase_versions(self, done: Sequence[PartitionErased]) -> ErasedVersions:
        """Deletes the versions of objects removed under this id, by this run or earlier ones."""
        remote = self.targets.remote
        if remote is None:
            return ErasedVersions()
        partitions = [partition for topic in self._topics for partition in topic.partitions]
        keys = {change["before"]["key"] for part in done for change in part.objects}
        return erase_remote_versions(remote.bucket, partitions, keys | self._removed_keys)

    def _describe(
        self, rescan: Rescan, erased: Mapping[str, Sequence[ErasedOutput]], *, passes: int
    ) -> dict[str, Any]:
        request, targets = self.request, self.targets
        finished_ms = self.clock.now_ms()
        done = {topic.name: self._read_done(topic) for topic in self._topics}
        versions = self._erase_versions([part for parts in done.values() for part in parts])
        balances = [
            balance for parts in done.values() for part in parts for balance in part.balances
        ]
        met = None if request.deadline_ms is None else finished_ms <= request.deadline_ms
        return {
            "kind": KIND,
            "format": FORMAT,
            "varve": __version__,
            "erasure": request.id,
            "store": None if targets.remote is None else targets.remote.bucket.objects().name,
            "cluster": None if targets.remote is None else targets.remote.cluster,
            "directories": [] if targets.local is None else list(targets.local.directories),
            "request": request.describe(self.random.randbytes(_SALT_BYTES)),
            "asked_ms": request.asked_ms,
            "began_ms": min([self._began_ms, *(balance.at_ms for balance in balances)]),
            "finished_ms": finished_ms,
            "deadline_ms": request.deadline_ms,
            "deadline_met": met,
            "passes": passes,
            "records": sum(part.records for parts in done.values() for part in parts),
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": topic.topic_id,
                    "partitions": [part.to_json() for part in done[topic.name]],
                    "outputs": [output.to_json() for output in erased.get(topic.name, ())],
                }
                for topic in self._topics
            ],
            "versions": versions.to_json(),
            "rescan": {"mode": str(request.rescan), **rescan.to_json()},
            "out_of_reach": self._out_of_reach(
                erased,
                versions=versions,
                is_versioned=any(
                    "version" in change["before"]
                    for parts in done.values()
                    for part in parts
                    for change in part.objects
                ),
            ),
        }

    def _out_of_reach(
        self,
        erased: Mapping[str, Sequence[ErasedOutput]],
        *,
        is_versioned: bool = False,
        versions: ErasedVersions = ErasedVersions(is_listed=False),  # noqa: B008  a value
    ) -> list[str]:
        unreached = list_unreached(
            self.targets,
            self._topics,
            self.request,
            unread=self._figures.unread_values,
            outputs=[output for parts in erased.values() for output in parts],
            is_versioned=is_versioned,
            versions=versions,
        )
        return [*dict.fromkeys(self._unmarked), *unreached]

    def _result(
        self,
        out_of_reach: Sequence[str],
        *,
        is_dry_run: bool = False,
        cost: ErasureCost | None = None,
        finish_ms: int | None = None,
    ) -> ErasureResult:
        copies = [output for topic in self._topics for output in topic.outputs.copies]
        return ErasureResult(
            id=self.request.id,
            is_dry_run=is_dry_run,
            partitions=self._figures.partitions,
            outputs=tuple(f"{output.kind} {output.name} at {output.place}" for output in copies),
            out_of_reach=tuple(out_of_reach),
            elapsed_ms=self.clock.now_ms() - self._began_ms,
            cost=cost,
            finish_ms=finish_ms,
        )


def erase(
    request: ErasureRequest,
    *,
    runner: TaskRunner,
    address: Bucket | None = None,
    directories: Sequence[str] = (),
    snapshot_settings: Mapping[str, GivenValue] | None = None,
    table_settings: Mapping[str, GivenValue] | None = None,
    signing_key: SigningKey | None = None,
    is_dry_run: bool = False,
    is_finish: bool = False,
    clock: Clock | None = None,
) -> ErasureResult:
    """Erases the requested records and issues the receipt.

    `directories` are the log directories of one store; raises Locked if another process has it
    open. A store that mirrors the bucket is erased with it. `snapshot_settings` and
    `table_settings` open the snapshots and tables derived from the topics. Raises NotFound for an
    unknown topic, and NotErased if the re-scan finds matches.
    """
    outputs = OutputSettings(
        snapshots=snapshot_settings or {},
        tables=table_settings or {},
        store_url="" if address is None else address.url,
        store={} if address is None else dict(address.settings),
    )
    if not is_dry_run:
        sweep_scratch()
    with ExitStack() as stack:
        targets = open_targets(stack, address=address, directories=directories)
        erasure = Erasure(
            replace(targets, output_settings=outputs),
            request,
            runner=runner,
            clock=clock or SystemClock(),
            random=random.SystemRandom(),
            signing_key=signing_key,
        )
        return erasure.run(is_dry_run=is_dry_run, is_finish=is_finish)


def open_targets(
    stack: ExitStack, *, address: Bucket | None, directories: Sequence[str]
) -> ErasureTargets:
    """Opens the bucket and the store, which stays open until the stack ends; raises Locked.

    Raises InvalidSetting if the directories are copied to another bucket: the erasure would miss
    all copied segments.
    """
    fs = RealFileSystem()
    paths = tuple(os.path.abspath(directory) for directory in directories)
    remote = local = None
    if address is not None:
        for directory in paths:
            if (location := read_location(fs, directory)) is not None:
                check_remembered("the object store", address.url, location.url, directory)
        search = partial(find_topic, address)
        remote = BucketTarget(address, find_cluster(address), search, address.url)
    if paths:
        try:
            store = stack.enter_context(embedded.open(list(paths), maintain=False))
        except Locked as error:
            if remote is None:
                raise
            raise Locked(
                f"{error}, or erase from the object store alone and from the directory later"
            ) from error
        local = DirectoryTarget(store, paths, fs)
    return ErasureTargets(remote, local)


def new_erasure_id() -> str:
    """Generates the id of an erasure."""
    return new_id(random.SystemRandom())
