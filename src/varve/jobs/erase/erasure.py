"""Erases the records of persons from topics, on all tiers and in all copies, and proves it.

1. The records are found; outputs that were made of the topics lose their rows first, while the log
   still holds their records.
2. Segments with a match are rewritten: in local logs, then in the cold tier, and what they replace
   is removed.
3. Everything that is there is read again. What was copied or added meanwhile is taken in another
   pass; so many are made.
4. Only when nothing is found the receipt is written.

Invariant  G8: no receipt without a re-scan of every live and retained object that found nothing.
Crash      killed anywhere and run again it completes; each partition is as it was, or erased.
"""

import os
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from varve import __version__, embedded
from varve.commit_log import Log
from varve.commit_log.directory_files import decode_topic_id
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.disk import RealFileSystem
from varve.embedded.tier_place import check_remembered, read_place
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, Locked, NotFound, StoreError
from varve.foundation.settings import GivenValue
from varve.jobs.derived_outputs import (
    DerivedOutput,
    ErasedOutput,
    ErasedRows,
    OutputSettings,
    count_in_output,
    erase_output,
)
from varve.jobs.erase.local import LocalErasure, LocalFindings
from varve.jobs.erase.receipt import (
    FORMAT,
    KIND,
    ErasureDocuments,
    PartitionErased,
    SigningKey,
    read_local_erased,
    read_remote_erased,
)
from varve.jobs.erase.remote import RemoteErasure, RemoteFindings, estimate_cost
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.rescan import NotErased, Rescan, rescan_local, rescan_remote
from varve.jobs.erase.result import ErasureCost, ErasureFigures, ErasureResult
from varve.jobs.erase.scan import Matcher
from varve.jobs.erase.targets import (
    BucketTarget,
    DirectoryTarget,
    ErasureTargets,
    TopicTarget,
    list_unreached,
)
from varve.jobs.object_versions import ErasedVersions, erase_remote_versions
from varve.jobs.tasks import TaskRunner, run_together
from varve.jobs.tier.bucket import Bucket, find_cluster, find_topic
from varve.jobs.tier.remote_files import sweep_scratch
from varve.object_store.prices import default_prices
from varve.tiering.manifest.pages import new_id

PASSES_MAX: Final = 4
"""Passes over the logs: each takes what was found by the re-scan of the one before."""
_SALT_BYTES: Final = 16


def run_erasure(
    targets: ErasureTargets,
    request: ErasureRequest,
    *,
    runner: TaskRunner,
    clock: Clock,
    random: random.Random,
    signing_key: SigningKey | None = None,
    is_dry_run: bool = False,
    is_finish: bool = False,
) -> ErasureResult:
    """Erases from all that can be reached; raises NotErased if something is still there.

    `is_finish` ends an erasure whose replaced objects had a grace time, under the id it has.
    """
    erasure = _Erasure(targets, request, runner, clock, random, signing_key)
    return erasure.look() if is_dry_run else erasure.run(is_finish=is_finish)


class _Erasure:
    """One run."""

    def __init__(
        self,
        targets: ErasureTargets,
        request: ErasureRequest,
        runner: TaskRunner,
        clock: Clock,
        random: random.Random,
        signing_key: SigningKey | None,
    ) -> None:
        self._targets = targets
        self._request = request
        self._runner = runner
        self._clock = clock
        self._random = random
        self._signing_key = signing_key
        self._began_ms = clock.now_ms()
        self._topics = targets.find_all(request.topics)
        self._documents = ErasureDocuments(targets, self._topics, request)
        self._matchers = {
            topic.name: Matcher.of(topic.topic_id, request.keys, request.field)
            for topic in self._topics
        }
        self._figures = ErasureFigures()
        self._local_changes: dict[str, list[dict[str, Any]]] = {}
        self._removed_keys: set[str] = set()

    # The run

    def look(self) -> ErasureResult:
        """What would be done."""
        self._documents.check()
        cold = self._pass(is_dry_run=True)
        tier = self._targets.tier
        cost = None
        if tier is not None:
            cost = estimate_cost(cold, default_prices(tier.reach.objects().name))
        return self._result(self._out_of_reach({}), is_dry_run=True, cost=cost)

    def run(self, *, is_finish: bool) -> ErasureResult:
        self._documents.check()
        if is_finish:
            self._check_begun()
        self._documents.put_request(self._random.randbytes(_SALT_BYTES))
        try:
            return self._run(is_finish=is_finish)
        except StoreError:
            with suppress(StoreError):  # The first error is raised.
                if not self._is_begun():
                    self._documents.remove_request()
            raise

    def _run(self, *, is_finish: bool) -> ErasureResult:
        erased = self._erase_outputs()
        rescan, only, passes = Rescan(), None, 0
        while passes == 0 or (rescan.found and passes < PASSES_MAX):
            findings = self._pass(only=only, waits_for_grace=is_finish)
            if any(remote_findings.is_waiting for remote_findings in findings):
                finish_ms = self._clock.now_ms() + self._request.grace_ms
                return self._result(self._out_of_reach(erased), finish_ms=finish_ms)
            rescan = self._rescan()
            only, passes = set(rescan.found), passes + 1
        rescan.check()
        self._check_outputs(erased, rescan)
        document = self._describe(rescan, erased, passes=passes)
        if self._signing_key is not None:
            document = self._signing_key.sign(document)
        stored = self._documents.put_receipt(document)
        result = self._result(document["out_of_reach"])
        return replace(result, receipt=document, receipt_places=stored)

    def _check_begun(self) -> None:
        if self._request.grace_ms:
            raise InvalidRequest("an erasure is finished without a grace time")
        if not self._is_begun():
            raise NotFound(
                f"no evidence of an erasure {self._request.id} is there: nothing was begun under "
                "this id, or nothing was found then; run it without --finish"
            )

    def _is_begun(self) -> bool:
        return any(done.balances for topic in self._topics for done in self._read_done(topic))

    def _pass(
        self,
        *,
        is_dry_run: bool = False,
        only: Collection[str] | None = None,
        waits_for_grace: bool = False,
    ) -> list[RemoteFindings]:
        for topic in self._topics:
            for log in topic.logs:
                local = self._erase_local(topic, log, is_dry_run=is_dry_run)
                self._figures.add(local.figures, local.offsets)
                self._local_changes.setdefault(log.directory, []).extend(
                    change.to_json() for change in local.changes
                )
        cold = self._erase_remote(is_dry_run, only, waits_for_grace)
        for findings in cold:
            self._figures.add(findings.figures, findings.offsets)
            self._forget_indexes(findings.replaced_ids)
            self._removed_keys |= set(findings.removed_keys)
        for findings in cold:
            if findings.error is not None:
                raise findings.error
        return cold

    def _erase_local(self, topic: TopicTarget, log: Log, *, is_dry_run: bool) -> LocalFindings:
        hot = self._targets.hot
        assert hot is not None, "logs are those of an open store"
        return LocalErasure(
            log,
            self._matchers[topic.name],
            fs=hot.fs,
            clock=self._clock,
            topic_id=decode_topic_id(topic.topic_id).bytes,
            request=self._request.id,
            buffer_bytes=self._request.buffer_bytes,
        ).run(is_dry_run=is_dry_run)

    def _erase_remote(
        self, is_dry_run: bool, only: Collection[str] | None, waits_for_grace: bool
    ) -> list[RemoteFindings]:
        tier = self._targets.tier
        if tier is None:
            return []
        runs = [
            RemoteErasure(
                partition,
                tier.reach,
                self._matchers[topic.name],
                clock=self._clock,
                random=self._random,
                request=self._request.id,
                grace_ms=self._request.grace_ms,
                buffer_bytes=self._request.buffer_bytes,
                only=only,
                waits_for_grace=waits_for_grace,
                takes_over=self._request.takes_over,
                owns_copies=bool(topic.logs),
            ).stages(is_dry_run=is_dry_run)
            for topic in self._topics
            for partition in topic.partitions
        ]
        return run_together(runs, self._runner)

    def _forget_indexes(self, ids: Sequence[str]) -> None:
        """Index files of replaced cold segments that were fetched for reads."""
        hot = self._targets.hot
        if hot is None or not ids:
            return
        for directory in hot.directories:
            cache = f"{directory}/{REMOTE_INDEX_CACHE_DIRECTORY}"
            for name in hot.fs.names(cache) if hot.fs.exists(cache) else ():
                if any(id in name for id in ids):
                    hot.fs.remove(f"{cache}/{name}")

    # Outputs

    def _erase_outputs(self) -> dict[str, list[ErasedOutput]]:
        """Rows are found by what the log still holds, so outputs come before it."""
        if not any(topic.outputs.copies for topic in self._topics):
            return {}
        self._pass(is_dry_run=True)
        self._figures.clear_figures()
        return {
            topic.name: [self._erase_output(topic, output) for output in topic.outputs.copies]
            for topic in self._topics
        }

    def _check_outputs(self, erased: dict[str, list[ErasedOutput]], rescan: Rescan) -> None:
        """Counts what is left; a job may have added rows meanwhile, which then go as well."""
        missing = {done.output_id for part in erased.values() for done in part if not done.is_there}
        for topic in self._topics:
            for output in topic.outputs.copies:
                if output.id in missing:
                    continue
                if self._count_in_output(topic, output):
                    done = self._erase_output(topic, output)
                    erased.setdefault(topic.name, []).append(done)
                    if left := self._count_in_output(topic, output):
                        reasons = "; ".join(done.out_of_reach)
                        raise NotErased(
                            f"{left} rows that were to be erased are still in {output.kind} "
                            f"{output.name} at {output.place}; no receipt is issued: "
                            f"{reasons or 'end the jobs that add to it, and run this one again'}"
                        )
                rescan.outputs += 1

    def _erase_output(self, topic: TopicTarget, output: DerivedOutput) -> ErasedOutput:
        return erase_output(
            output,
            self._targets.output_settings,
            self._rows(topic),
            runner=self._runner,
            others=topic.outputs.copies,
        )

    def _count_in_output(self, topic: TopicTarget, output: DerivedOutput) -> int:
        return count_in_output(
            output,
            self._targets.output_settings,
            self._rows(topic),
            runner=self._runner,
            others=topic.outputs.copies,
        )

    def _rows(self, topic: TopicTarget) -> ErasedRows:
        return ErasedRows(self._request.keys, self._figures.offsets(topic.name))

    # The proof

    def _rescan(self) -> Rescan:
        rescan = Rescan()
        for topic in self._topics:
            matcher = self._matchers[topic.name]
            if self._targets.tier is not None and topic.partitions:
                rescan_remote(
                    rescan,
                    self._targets.tier.reach,
                    topic.partitions,
                    matcher,
                    mode=self._request.rescan,
                    runner=self._runner,
                )
            for log in topic.logs:
                assert self._targets.hot is not None
                log.flush()
                rescan_local(rescan, self._targets.hot.fs, log.directory, matcher)
        return rescan

    def _read_done(self, topic: TopicTarget) -> list[PartitionErased]:
        done: list[PartitionErased] = []
        for partition in topic.partitions:
            assert self._targets.tier is not None
            done.append(read_remote_erased(self._targets.tier.reach, partition, self._request.id))
        for log in topic.logs:
            assert self._targets.hot is not None
            changes = self._local_changes.get(log.directory, [])
            done.append(read_local_erased(self._targets.hot.fs, log, self._request.id, changes))
        return done

    def _erase_versions(self, done: Sequence[PartitionErased]) -> ErasedVersions:
        """Of what was removed under this id, by this run or one before."""
        tier = self._targets.tier
        if tier is None:
            return ErasedVersions()
        partitions = [partition for topic in self._topics for partition in topic.partitions]
        keys = {change["before"]["key"] for part in done for change in part.objects}
        return erase_remote_versions(tier.reach, partitions, keys | self._removed_keys)

    def _describe(
        self, rescan: Rescan, erased: Mapping[str, Sequence[ErasedOutput]], *, passes: int
    ) -> dict[str, Any]:
        request, targets = self._request, self._targets
        finished_ms = self._clock.now_ms()
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
            "store": None if targets.tier is None else targets.tier.reach.objects().name,
            "cluster": None if targets.tier is None else targets.tier.cluster,
            "directories": [] if targets.hot is None else list(targets.hot.directories),
            "request": request.describe(self._random.randbytes(_SALT_BYTES)),
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
        versions: ErasedVersions = ErasedVersions(is_asked=False),  # noqa: B008  a value
    ) -> list[str]:
        return list_unreached(
            self._targets,
            self._topics,
            self._request,
            unread=self._figures.unread_values,
            outputs=[output for parts in erased.values() for output in parts],
            is_versioned=is_versioned,
            versions=versions,
        )

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
            id=self._request.id,
            is_dry_run=is_dry_run,
            partitions=self._figures.partitions,
            outputs=tuple(f"{output.kind} {output.name} at {output.place}" for output in copies),
            out_of_reach=tuple(out_of_reach),
            elapsed_ms=self._clock.now_ms() - self._began_ms,
            cost=cost,
            finish_ms=finish_ms,
        )


def erase(
    request: ErasureRequest,
    *,
    runner: TaskRunner,
    address: Bucket | None = None,
    mirror_url: str = "",
    mirror_settings: tuple[tuple[str, GivenValue], ...] = (),
    directories: Sequence[str] = (),
    snapshot_settings: Mapping[str, GivenValue] | None = None,
    table_settings: Mapping[str, GivenValue] | None = None,
    signing_key: SigningKey | None = None,
    is_dry_run: bool = False,
    is_finish: bool = False,
    clock: Clock | None = None,
) -> ErasureResult:
    """Erases what is asked for, and issues the receipt.

    `directories` are those of one store, which must not be open elsewhere: Locked otherwise. A
    store at `mirror_url` that mirrors the bucket is erased with it. The settings of snapshots and
    tables are what it takes to open those that were made of the topics. Raises NotFound for a topic
    that is nowhere, and NotErased where the re-scan finds something.
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
        targets = open_targets(
            stack,
            address=address,
            mirror_url=mirror_url,
            mirror_settings=mirror_settings,
            directories=directories,
        )
        return run_erasure(
            replace(targets, output_settings=outputs),
            request,
            runner=runner,
            clock=clock or SystemClock(),
            random=random.SystemRandom(),
            signing_key=signing_key,
            is_dry_run=is_dry_run,
            is_finish=is_finish,
        )


def open_targets(
    stack: ExitStack,
    *,
    address: Bucket | None,
    mirror_url: str,
    mirror_settings: tuple[tuple[str, GivenValue], ...],
    directories: Sequence[str],
) -> ErasureTargets:
    """The bucket and the store, which is open until the stack ends; raises Locked.

    Raises InvalidSetting for a bucket that is not the one the directories have copied to.
    """
    paths = [os.path.abspath(directory) for directory in directories]
    if address is not None:
        _check_remembered(address.url, paths)
    return ErasureTargets(
        None if address is None else _open_tier(address, mirror_url, mirror_settings),
        _open_store(paths, stack) if paths else None,
    )


def _check_remembered(url: str, directories: Sequence[str]) -> None:
    """A receipt that speaks of another bucket would leave all that was copied as it is."""
    for directory in directories:
        place = read_place(RealFileSystem(), directory)
        if place is not None:
            check_remembered("the object store", url, place.url, directory)


def new_erasure_id() -> str:
    """An id for an erasure."""
    return new_id(random.SystemRandom())


def _open_tier(
    address: Bucket, mirror_url: str, mirror_settings: tuple[tuple[str, GivenValue], ...]
) -> BucketTarget:
    reach = address
    if mirror_url:
        reach = replace(address, mirror_url=mirror_url, mirror_settings=mirror_settings)
    return BucketTarget(
        reach,
        find_cluster(address),
        lambda name: find_topic(address, name),
        address.url,
    )


def _open_store(directories: Sequence[str], stack: ExitStack) -> DirectoryTarget:
    try:
        store = stack.enter_context(embedded.open(list(directories), maintain=False))
    except Locked as error:
        raise Locked(
            f"{error}; stop it for the erasure, or erase from the object store alone and from the "
            "directory later"
        ) from error
    return DirectoryTarget(store, tuple(directories), RealFileSystem())
