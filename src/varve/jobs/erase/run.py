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

import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from varve import __version__
from varve.commit_log import Log
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.commit_log.partition_metadata import decode_topic_id
from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, NotFound, StoreError
from varve.jobs.erase.cold import ColdErasure, ColdFindings
from varve.jobs.erase.figures import ErasureFigures, estimate_cost
from varve.jobs.erase.hot import HotErasure, HotFindings
from varve.jobs.erase.match import Matcher
from varve.jobs.erase.outputs import OutputSettings, count_in_output, erase_output
from varve.jobs.erase.places import Places, TopicPlace
from varve.jobs.erase.reach import tell_out_of_reach
from varve.jobs.erase.receipt import (
    FORMAT,
    KIND,
    PartitionErased,
    read_cold_erased,
    read_hot_erased,
)
from varve.jobs.erase.receipt_signature import SigningKey
from varve.jobs.erase.receipt_store import ErasureDocuments
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.rescan import NotErased, Rescan, rescan_cold, rescan_hot
from varve.jobs.erase.result import ErasureCost, ErasureResult
from varve.jobs.erase.versions import erase_tier_versions
from varve.jobs.outputs.erased_rows import ErasedOutput, ErasedRows
from varve.jobs.tasks import TaskRunner, run_together
from varve.jobs.tier.removed_versions import ErasedVersions
from varve.object_store.prices import default_prices

PASSES_MAX: Final = 4
"""Passes over the logs: each takes what was found by the re-scan of the one before."""
_SALT_BYTES: Final = 16


def erase_from(
    places: Places,
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
    erasure = _Erasure(places, request, runner, clock, random, signing_key)
    return erasure.look() if is_dry_run else erasure.run(is_finish=is_finish)


class _Erasure:
    """One run."""

    def __init__(
        self,
        places: Places,
        request: ErasureRequest,
        runner: TaskRunner,
        clock: Clock,
        random: random.Random,
        signing_key: SigningKey | None,
    ) -> None:
        self._places = places
        self._request = request
        self._runner = runner
        self._clock = clock
        self._random = random
        self._signing_key = signing_key
        self._began_ms = clock.now_ms()
        self._topics = places.find_all(request.topics)
        self._documents = ErasureDocuments(places, self._topics, request)
        self._matchers = {
            one.name: Matcher.of(one.topic_id, request.keys, request.field) for one in self._topics
        }
        self._figures = ErasureFigures()
        self._hot_changes: dict[str, list[dict[str, Any]]] = {}
        self._removed_keys: set[str] = set()

    # The run

    def look(self) -> ErasureResult:
        """What would be done."""
        self._documents.check()
        cold = self._pass(is_dry_run=True)
        tier = self._places.tier
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
    ) -> list[ColdFindings]:
        for topic in self._topics:
            for log in topic.logs:
                found = self._erase_hot(topic, log, is_dry_run=is_dry_run)
                self._figures.note_hot(topic.name, log.topic_partition.partition, found)
                self._hot_changes.setdefault(log.directory, []).extend(
                    one.to_json() for one in found.changes
                )
        cold = self._erase_cold(is_dry_run, only, waits_for_grace)
        for findings in cold:
            self._figures.note_cold(findings)
            self._forget_indexes(findings.replaced_ids)
            self._removed_keys |= set(findings.removed_keys)
        for findings in cold:
            if findings.error is not None:
                raise findings.error
        return cold

    def _erase_hot(self, topic: TopicPlace, log: Log, *, is_dry_run: bool) -> HotFindings:
        hot = self._places.hot
        assert hot is not None, "logs are those of an open store"
        return HotErasure(
            log,
            self._matchers[topic.name],
            fs=hot.fs,
            clock=self._clock,
            topic_id=decode_topic_id(topic.topic_id).bytes,
            request=self._request.id,
            buffer_bytes=self._request.buffer_bytes,
        ).run(is_dry_run=is_dry_run)

    def _erase_cold(
        self, is_dry_run: bool, only: Collection[str] | None, waits_for_grace: bool
    ) -> list[ColdFindings]:
        tier = self._places.tier
        if tier is None:
            return []
        runs = [
            ColdErasure(
                home,
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
            for home in topic.homes
        ]
        return run_together(runs, self._runner)

    def _forget_indexes(self, ids: Sequence[str]) -> None:
        """Index files of replaced cold segments that were fetched for reads."""
        hot = self._places.hot
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
        self._figures.begin_anew()
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
        return self._places.output_settings

    def _rows(self, topic: TopicPlace) -> ErasedRows:
        return ErasedRows(self._request.keys, self._figures.offsets(topic.name))

    # The proof

    def _rescan(self) -> Rescan:
        rescan = Rescan()
        for topic in self._topics:
            matcher = self._matchers[topic.name]
            if self._places.tier is not None and topic.homes:
                rescan_cold(
                    rescan,
                    self._places.tier.reach,
                    topic.homes,
                    matcher,
                    mode=self._request.rescan,
                    runner=self._runner,
                )
            for log in topic.logs:
                assert self._places.hot is not None
                log.flush()
                rescan_hot(rescan, self._places.hot.fs, log.directory, matcher)
        return rescan

    def _read_done(self, topic: TopicPlace) -> list[PartitionErased]:
        done: list[PartitionErased] = []
        for home in topic.homes:
            assert self._places.tier is not None
            done.append(read_cold_erased(self._places.tier.reach, home, self._request.id))
        for log in topic.logs:
            assert self._places.hot is not None
            changes = self._hot_changes.get(log.directory, [])
            done.append(read_hot_erased(self._places.hot.fs, log, self._request.id, changes))
        return done

    def _erase_versions(self, done: Sequence[PartitionErased]) -> ErasedVersions:
        """Of what was removed under this id, by this run or one before."""
        tier = self._places.tier
        if tier is None:
            return ErasedVersions()
        homes = [home for topic in self._topics for home in topic.homes]
        keys = {one["before"]["key"] for part in done for one in part.objects}
        return erase_tier_versions(tier.reach, homes, keys | self._removed_keys)

    def _describe(
        self, rescan: Rescan, erased: Mapping[str, Sequence[ErasedOutput]], *, passes: int
    ) -> dict[str, Any]:
        request, places = self._request, self._places
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
            "store": None if places.tier is None else places.tier.reach.objects().name,
            "cluster": None if places.tier is None else places.tier.cluster,
            "directories": [] if places.hot is None else list(places.hot.directories),
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
        return tell_out_of_reach(
            self._places,
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
