"""Whatever was written, rolled, copied, compacted and deleted: a snapshot is what a dict holds."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.snapshot_topic import IN_MEMORY, SMALL, Rows, SnapshotTopic, apply, rows_of
from tests.support.source_topic import SourceTopic
from varve.commit_log import LogSettings
from varve.jobs.compact.job import compact
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.snapshot.snapshot import DAY_MS
from varve.jobs.tasks import LocalRunner
from varve.object_store import MemoryObjectStore
from varve.records import Codec

Script = list[tuple[Any, ...]]

RETENTION_MS = 2 * DAY_MS
KEPT = replace(SMALL, grace_ms=1 << 60)
key = st.sampled_from([b"", b"a", b"b", b"c", b"long key"])
value = st.sampled_from([None, b"", b"1", b"x" * 300])
codec = st.sampled_from([Codec.NONE, Codec.ZSTD])
plain = st.tuples(st.just("plain"), st.lists(st.tuples(key, value), min_size=1, max_size=4), codec)
part = st.tuples(st.just("part"), st.integers(1, 2), st.tuples(key, value))
end = st.tuples(st.just("end"), st.integers(1, 2), st.booleans())
tier = st.tuples(st.sampled_from(["roll", "copy", "move"]))
snap = st.tuples(st.just("snap"))
at = st.tuples(st.just("at"), st.integers(0, 30))
removal = st.tuples(st.sampled_from(["clean", "compact", "forget", "days", "days", "delete"]))
written = st.one_of(plain, plain, part, end, tier)


class Play:
    """A script step by step, beside the list of all committed records ever seen."""

    def __init__(self, root: str) -> None:
        topic = SourceTopic(
            Path(root),
            cleanup_policy="compact,delete",
            index_interval_bytes=64,
            delete_retention_ms=RETENTION_MS,
        )
        self.kit = SnapshotTopic(topic, settings=KEPT, clock=topic.kit.clock)
        self.topic = topic
        self.history: dict[int, Any] = {}

    def note(self) -> None:
        found = self.topic.topic.read(isolation="read_committed")
        self.history |= {one.offset: one for one in found}

    def model(self, start: int, stop: int) -> Rows:
        state: Rows = {}
        ordered = [self.history[offset] for offset in sorted(self.history)]
        apply(state, 0, [one for one in ordered if start <= one.offset < stop])
        return state

    def step(self, step: tuple[Any, ...]) -> None:
        topic = self.topic
        match step:
            case ("clean",):
                self.note()
                topic.play(step)
            case ("compact",):
                self.note()
                topic.copy()
                self._compact(delete_retention_ms=RETENTION_MS)
            case ("forget",):
                self.note()
                topic.copy()
                self._compact(delete_retention_ms=0)
                self._compact(delete_retention_ms=0)
            case ("days",):
                topic.kit.advance(days=1.5)
            case ("delete",):
                self.note()
                log = topic.topic.partition(0).log
                topic.topic.delete_records((log.log_start_offset + log.last_stable_offset) // 2)
                topic.kit.run_background()
            case _:
                topic.play(step)

    def _compact(self, *, delete_retention_ms: int) -> None:
        address = self.topic.options().address
        assert address is not None
        if address.objects().list_directories(""):
            log = LogSettings(
                cleanup_policy=("compact", "delete"),
                retention_ms=-1,
                delete_retention_ms=delete_retention_ms,
            )
            made = CompactSettings(log=log, is_forced=True)
            compact(
                address,
                ["orders"],
                settings=made,
                runner=LocalRunner(),
                clock=self.topic.kit.clock,
            )

    def check(self, *, stop: int | None = None) -> None:
        """Takes a snapshot: it is the model's, and a consumer of it comes to the state of the end.

        A full one elsewhere is the same bytes, also if its plan does not pass through the driver.
        """
        self.note()
        log = self.topic.topic.partition(0).log
        if stop is not None:
            stop = max(min(stop, log.last_stable_offset), log.log_start_offset)
        result = self.kit.take(at=stop)
        (found,) = result.partitions
        assert found.resume_offset == (log.last_stable_offset if stop is None else stop)
        state = rows_of(self.kit.open(result.snapshot))
        assert state == self.model(found.start_offset, found.resume_offset)
        apply(
            state,
            0,
            [
                one
                for one in self.topic.topic.read(isolation="read_committed")
                if one.offset >= found.resume_offset
            ],
        )
        assert state == self.model(found.start_offset, log.last_stable_offset)
        elsewhere = replace(
            self.kit,
            store=MemoryObjectStore(),
            settings=replace(self.kit.settings, inline_bytes=0),
        )
        other = elsewhere.take(at=stop)
        assert other.document.files == result.document.files
        assert not list(elsewhere.store.list("work/")), "work is left"


@settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.one_of(written, written, at, snap), max_size=20))
def test_a_snapshot_at_any_offset_is_what_a_dict_holds_there(script: Script) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as root:
        play = Play(root)
        for step in [*script, ("snap",)]:
            if step[0] == "at":
                play.check(stop=step[1])
            elif step[0] == "snap":
                play.check()
            else:
                play.step(step)
        play.topic.close()


@settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.one_of(written, written, removal, snap), max_size=24))
def test_a_chain_over_compactions_and_deletions_is_what_a_full_one_is(script: Script) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as root:
        play = Play(root)
        for step in [*script, ("snap",)]:
            if step[0] == "snap":
                play.check()
            else:
                play.step(step)
        play.topic.close()
