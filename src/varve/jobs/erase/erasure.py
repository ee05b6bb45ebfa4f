"""Erases the records of persons from topics, on all tiers and in all copies, and proves it.

1. The records are found; outputs that were made of the topics lose their rows first, while the log
   still tells which these are.
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
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve import __version__, embedded
from varve.commit_log import Log
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.commit_log.partition_metadata import decode_topic_id
from varve.disk import RealFileSystem
from varve.embedded.tier_place import check_remembered, read_place
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, Locked, NotFound, StoreError
from varve.foundation.settings import GivenValue
from varve.jobs.derived_outputs import (
    ErasedOutput,
    ErasedRows,
    OutputSettings,
    count_in_output,
    erase_output,
)
from varve.jobs.erase.local import LocalErasure, LocalFindings, sum_offsets
from varve.jobs.erase.receipt import (
    FORMAT,
    KIND,
    ErasureDocuments,
    PartitionErased,
    SigningKey,
    read_local_erased,
    read_remote_erased,
)
from varve.jobs.erase.remote import RemoteErasure, RemoteFindings
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.rescan import NotErased, Rescan, rescan_local, rescan_remote
from varve.jobs.erase.scan import Matcher
from varve.jobs.erase.targets import (
    BucketTarget,
    DirectoryTarget,
    ErasureTargets,
    TopicTarget,
    list_unreached,
)
from varve.jobs.object_versions import ErasedVersions, erase_remote_versions
from varve.jobs.results import JobResult
from varve.jobs.scratch import sweep_scratch
from varve.jobs.tasks import TaskRunner, run_together
from varve.jobs.tier.address import TierAddress, find_cluster, find_topic
from varve.jobs.tier.mirror_reach import MirrorReach
from varve.jobs.tier.reach import AddressReach, TierReach
from varve.object_store.prices import PriceTable, RequestKind, default_prices
from varve.tiering.manifest.pages import new_id

Integers = npt.NDArray[np.int64]

_REWRITE_READS = 4
"""How often a segment with a match is read: to find, to plan, to copy, and back."""
_REWRITE_REQUESTS = 30
PASSES_MAX: Final = 4
"""Passes over the logs: each takes what was found by the re-scan of the one before."""
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionErasure:
    """One partition on one tier, cold or hot: what was looked into, and what holds a match."""

    topic: str
    partition: int
    tier: str
    segments: int
    segments_matched: int
    matched_bytes: int
    records: int
    record_bytes: int
    unread_values: int
    bytes_read: int
    swept: int = 0

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "tier": self.tier,
            "segments": self.segments,
            "segments_matched": self.segments_matched,
            "matched_bytes": self.matched_bytes,
            "records": self.records,
            "record_bytes": self.record_bytes,
            "unread_values": self.unread_values,
            "bytes_read": self.bytes_read,
            "swept": self.swept,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureCost:
    """What the object store is asked for by the rest of an erasure, at its list prices."""

    requests: int
    read_bytes: int
    cost: float
    currency: str
    prices: str

    def to_json(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "read_bytes": self.read_bytes,
            "cost": self.cost,
            "currency": self.currency,
            "prices": self.prices,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult(JobResult):
    """A whole erasure.

    `receipt` is None for a dry run, and while replaced objects stay for their grace time, which
    ends at `finish_ms`. `receipt_places` are where it was put.
    """

    id: str
    is_dry_run: bool
    partitions: tuple[PartitionErasure, ...]
    outputs: tuple[str, ...]
    out_of_reach: tuple[str, ...]
    elapsed_ms: int
    cost: ErasureCost | None = None
    receipt: dict[str, Any] | None = None
    receipt_places: tuple[str, ...] = ()
    finish_ms: int | None = None

    @property
    def records(self) -> int:
        """Records found on any tier; one that both tiers held counts twice."""
        return sum(one.records for one in self.partitions)

    def to_json(self) -> dict[str, object]:
        return {
            "erasure": self.id,
            "is_dry_run": self.is_dry_run,
            "partitions": [one.to_json() for one in self.partitions],
            "outputs": list(self.outputs),
            "out_of_reach": list(self.out_of_reach),
            "elapsed_ms": self.elapsed_ms,
            "cost": None if self.cost is None else self.cost.to_json(),
            "receipt": self.receipt,
            "receipt_places": list(self.receipt_places),
            "finish_ms": self.finish_ms,
        }


class ErasureFigures:
    """Adds up pass after pass."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, int, str], PartitionErasure] = {}
        self._offsets: dict[str, dict[int, Integers]] = {}

    @property
    def partitions(self) -> tuple[PartitionErasure, ...]:
        return tuple(self._figures.values())

    @property
    def unread(self) -> int:
        """Values that could not be read as JSON, on all tiers."""
        return sum(one.unread_values for one in self._figures.values())

    def offsets(self, topic: str) -> Mapping[int, Integers]:
        """By partition, the offsets of all records that were found."""
        return self._offsets.get(topic, {})

    def clear_figures(self) -> None:
        """Forgets figures of a pass that only looked; offsets stay known."""
        self._figures.clear()

    def add_local(self, topic: str, partition: int, found: LocalFindings) -> None:
        self._note(
            topic,
            found.offsets,
            PartitionErasure(
                topic=topic,
                partition=partition,
                tier="hot",
                segments=found.segments_looked,
                segments_matched=found.segments_matched,
                matched_bytes=found.matched_bytes,
                records=found.records,
                record_bytes=found.record_bytes,
                unread_values=found.unread,
                bytes_read=found.bytes_looked,
            ),
        )

    def add_remote(self, found: RemoteFindings) -> None:
        self._note(
            found.partition.topic,
            found.offsets,
            PartitionErasure(
                topic=found.partition.topic,
                partition=found.partition.partition,
                tier="cold",
                segments=found.segments_looked,
                segments_matched=found.segments_matched,
                matched_bytes=found.matched_bytes,
                records=found.records,
                record_bytes=found.record_bytes,
                unread_values=found.unread,
                bytes_read=found.bytes_looked,
                swept=found.swept,
            ),
        )

    def _note(self, topic: str, offsets: Sequence[Integers], new: PartitionErasure) -> None:
        """A later pass adds what it found; it looks at what the first one looked at."""
        known = self._offsets.setdefault(topic, {})
        before = [known[new.partition]] if new.partition in known else []
        known[new.partition] = sum_offsets([*before, *offsets])
        place = (new.topic, new.partition, new.tier)
        old = self._figures.get(place)
        if old is not None:
            new = replace(
                new,
                segments=max(old.segments, new.segments),
                segments_matched=old.segments_matched + new.segments_matched,
                matched_bytes=old.matched_bytes + new.matched_bytes,
                records=old.records + new.records,
                record_bytes=old.record_bytes + new.record_bytes,
                unread_values=max(old.unread_values, new.unread_values),
                bytes_read=old.bytes_read + new.bytes_read,
                swept=old.swept + new.swept,
            )
        self._figures[place] = new


def estimate_cost(cold: Sequence[RemoteFindings], prices: PriceTable) -> ErasureCost:
    """What is still to be asked for after a look: the rewrite, and the re-scan of everything."""
    matched = sum(one.segments_matched for one in cold)
    read_bytes = sum(one.log_bytes + _REWRITE_READS * one.matched_bytes for one in cold)
    reads = sum(one.log_requests for one in cold) + matched * _REWRITE_REQUESTS
    writes = matched * _REWRITE_REQUESTS
    requests = {RequestKind.READ: reads, RequestKind.WRITE: writes}
    return ErasureCost(
        requests=reads + writes,
        read_bytes=read_bytes,
        cost=prices.requests_cost(requests) + prices.transfer_cost(read_bytes),
        currency=prices.currency,
        prices=prices.name,
    )


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
            one.name: Matcher.of(one.topic_id, request.keys, request.field) for one in self._topics
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
            with suppress(StoreError):  # What went wrong first is told.
                if not self._is_begun():
                    self._documents.remove_request()
            raise

    def _run(self, *, is_finish: bool) -> ErasureResult:
        erased = self._erase_outputs()
        rescan, only, passes = Rescan(), None, 0
        while passes == 0 or (rescan.found and passes < PASSES_MAX):
            findings = self._pass(only=only, waits_for_grace=is_finish)
            if any(one.waiting for one in findings):
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
        return any(one.balances for topic in self._topics for one in self._read_done(topic))

    def _pass(
        self,
        *,
        is_dry_run: bool = False,
        only: Collection[str] | None = None,
        waits_for_grace: bool = False,
    ) -> list[RemoteFindings]:
        for topic in self._topics:
            for log in topic.logs:
                found = self._erase_local(topic, log, is_dry_run=is_dry_run)
                self._figures.add_local(topic.name, log.topic_partition.partition, found)
                self._local_changes.setdefault(log.directory, []).extend(
                    one.to_json() for one in found.changes
                )
        cold = self._erase_remote(is_dry_run, only, waits_for_grace)
        for findings in cold:
            self._figures.add_remote(findings)
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
        """Rows are told by what the log still holds, so outputs come before it."""
        if not any(topic.outputs.copies for topic in self._topics):
            return {}
        self._pass(is_dry_run=True)
        self._figures.clear_figures()
        return {
            topic.name: [
                erase_output(one, self._settings, self._rows(topic), others=topic.outputs.copies)
                for one in topic.outputs.copies
            ]
            for topic in self._topics
        }

    def _check_outputs(self, erased: dict[str, list[ErasedOutput]], rescan: Rescan) -> None:
        """Counts what is left; a job may have added rows meanwhile, which then go as well."""
        missing = {one.output_id for parts in erased.values() for one in parts if not one.is_there}
        for topic in self._topics:
            for one in topic.outputs.copies:
                if one.id in missing:
                    continue
                rows, others = self._rows(topic), topic.outputs.copies
                if count_in_output(one, self._settings, rows, others=others):
                    erased.setdefault(topic.name, []).append(
                        erase_output(one, self._settings, rows, others=others)
                    )
                    if left := count_in_output(one, self._settings, rows, others=others):
                        told = "; ".join(erased[topic.name][-1].out_of_reach)
                        raise NotErased(
                            f"{left} rows that were to be erased are still in {one.kind} "
                            f"{one.name} at {one.place}; no receipt is issued: "
                            f"{told or 'end the jobs that add to it, and run this one again'}"
                        )
                rescan.outputs += 1

    @property
    def _settings(self) -> OutputSettings:
        return self._targets.output_settings

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
        keys = {one["before"]["key"] for part in done for one in part.objects}
        return erase_remote_versions(tier.reach, partitions, keys | self._removed_keys)

    def _describe(
        self, rescan: Rescan, erased: Mapping[str, Sequence[ErasedOutput]], *, passes: int
    ) -> dict[str, Any]:
        request, targets = self._request, self._targets
        finished_ms = self._clock.now_ms()
        done = {topic.name: self._read_done(topic) for topic in self._topics}
        versions = self._erase_versions([part for parts in done.values() for part in parts])
        balances = [one for parts in done.values() for part in parts for one in part.balances]
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
            "began_ms": min([self._began_ms, *(one.at_ms for one in balances)]),
            "finished_ms": finished_ms,
            "deadline_ms": request.deadline_ms,
            "deadline_met": met,
            "passes": passes,
            "records": sum(part.records for parts in done.values() for part in parts),
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": topic.topic_id,
                    "partitions": [one.to_json() for one in done[topic.name]],
                    "outputs": [one.to_json() for one in erased.get(topic.name, ())],
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
            unread=self._figures.unread,
            outputs=[one for parts in erased.values() for one in parts],
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
        copies = [one for topic in self._topics for one in topic.outputs.copies]
        return ErasureResult(
            id=self._request.id,
            is_dry_run=is_dry_run,
            partitions=self._figures.partitions,
            outputs=tuple(f"{one.kind} {one.name} at {one.place}" for one in copies),
            out_of_reach=tuple(out_of_reach),
            elapsed_ms=self._clock.now_ms() - self._began_ms,
            cost=cost,
            finish_ms=finish_ms,
        )


def erase(
    request: ErasureRequest,
    *,
    runner: TaskRunner,
    address: TierAddress | None = None,
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
    address: TierAddress | None,
    mirror_url: str,
    mirror_settings: tuple[tuple[str, GivenValue], ...],
    directories: Sequence[str],
) -> ErasureTargets:
    """The bucket and the store, which is open until the stack ends; raises Locked.

    Raises InvalidSetting for a bucket that is not the one the directories have copied to.
    """
    paths = [os.path.abspath(one) for one in directories]
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
    address: TierAddress, mirror_url: str, mirror_settings: tuple[tuple[str, GivenValue], ...]
) -> BucketTarget:
    reach: TierReach = AddressReach(address)
    if mirror_url:
        reach = MirrorReach(address, mirror_url, mirror_settings)
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
