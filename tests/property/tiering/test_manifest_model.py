"""Manifests under any sequence of commits by several writers equal a plain dictionary: G3, G6.

Each writer has a faulty way to one store: requests and answers are lost, repeated and throttled.
Every version names the operation that made it, so the model is replayed from the chain: an
operation that was acknowledged is there exactly once, one that failed at most once.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.remote_builder import HOME, SMALL, make_segment, open_manifest
from varve.foundation.errors import ObjectNotFound, Unavailable
from varve.object_store import MemoryObjectStore
from varve.testing import FaultKind, FaultyObjectStore, ObjectFaultPlan
from varve.tiering.manifest.commit import RetryLimits
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.manifest.store import ObjectManifestStore

STARTED, FINISHED, DELETING = SegmentState
RATES = {
    FaultKind.ERROR_BEFORE: 0.06,
    FaultKind.ERROR_AFTER: 0.06,
    FaultKind.REPEATED: 0.06,
    FaultKind.THROTTLED: 0.03,
    FaultKind.PARTIAL: 0.03,
}
WRITER_COUNT = 3


@dataclass(frozen=True)
class State:
    """What a version should hold."""

    segments: dict[str, RemoteSegment] = field(default_factory=dict)
    log_start: int = 0

    def with_segment(self, segment: RemoteSegment) -> "State":
        return replace(self, segments={**self.segments, segment.id: segment})

    def without(self, id: str) -> "State":
        return replace(self, segments={k: v for k, v in self.segments.items() if k != id})

    def in_order(self) -> list[RemoteSegment]:
        return sorted(self.segments.values(), key=lambda segment: segment.sort_key)


@dataclass(frozen=True)
class Operation:
    on_model: Callable[[State], State]
    on_manifest: Callable[[ObjectManifestStore, Manifest], Manifest]


def near(store: ObjectManifestStore, manifest: Manifest, segment: RemoteSegment) -> Manifest:
    start = segment.base_offset
    return store.unfold(manifest, start_offset=start, end_offset=start + 1)


def update(*segments: RemoteSegment) -> Operation:
    def on_model(state: State) -> State:
        for segment in segments:
            state = state.with_segment(segment)
        return state

    def on_manifest(store: ObjectManifestStore, manifest: Manifest) -> Manifest:
        for segment in segments:
            manifest = manifest.update(segment)
        return manifest

    return Operation(on_model, on_manifest)


class ManifestMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.objects = MemoryObjectStore()
        self.seeds = iter(range(1_000_000))
        self.reader = open_manifest(self.objects, next(self.seeds))
        self.writers = [self.open_writer() for _ in range(WRITER_COUNT)]
        self.history = [State()]
        self.retired_until_ms = -1
        self.operations: dict[str, Operation] = {}
        self.now_ms = 0

    def open_writer(self) -> ObjectManifestStore:
        seed = next(self.seeds)
        faulty = FaultyObjectStore(self.objects, ObjectFaultPlan(seed=seed, rates=RATES))
        return open_manifest(faulty, seed, retry=RetryLimits(attempts=4), grace_ms=0)

    @property
    def state(self) -> State:
        return self.history[-1]

    def choose(self, data: Any, *states: SegmentState) -> RemoteSegment:
        found = [one for one in self.state.in_order() if one.state in states]
        return data.draw(st.sampled_from(found))  # type: ignore[no-any-return]  # data is untyped

    def has(self, *states: SegmentState) -> bool:
        return any(one.state in states for one in self.state.segments.values())

    def run(self, operation: Operation, writer: int, rival: Operation | None = None) -> None:
        """Commits, perhaps with a rival who is first; then replays what the chain says."""
        self.now_ms += 1
        acknowledged: list[str] = []
        rivals = [] if rival is None else [rival]
        store = self.writers[writer]
        other = self.writers[(writer + 1) % WRITER_COUNT]

        def change(manifest: Manifest) -> Manifest:
            if rivals:
                self.send(other, rivals.pop(), acknowledged)
            return operation.on_manifest(store, manifest)

        self.send(store, operation, acknowledged, change)
        self.replay(acknowledged)

    def send(
        self,
        store: ObjectManifestStore,
        operation: Operation,
        acknowledged: list[str],
        change: Callable[[Manifest], Manifest] | None = None,
    ) -> None:
        name = f"operation-{len(self.operations)}"
        self.operations[name] = operation
        wanted = change or (lambda manifest: operation.on_manifest(store, manifest))
        try:
            store.commit(wanted, leader_epoch=0, writer=name, now_ms=self.now_ms)
        except Unavailable:
            return
        acknowledged.append(name)

    def replay(self, acknowledged: list[str]) -> None:
        newest = self.reader.load().version
        seen: list[str] = []
        for version in range(len(self.history), newest + 1):
            manifest = self.reader.at(version=version)
            seen.append(manifest.writer)
            self.history.append(self.operations[manifest.writer].on_model(self.state))
        assert len(seen) == len(set(seen)), "an operation was applied twice"
        for name in acknowledged:
            unchanged = self.operations[name].on_model(self.state) == self.state
            assert name in seen or unchanged, "an acknowledged operation is lost"

    @rule(writer=st.integers(0, 2), count=st.integers(1, 6), data=st.data())
    def announce(self, writer: int, count: int, data: Any) -> None:
        top = max((one.base_offset // 100 + 1 for one in self.state.segments.values()), default=0)
        for number in range(top, top + count):
            at = data.draw(st.sampled_from([number, number, number, number // 2]))
            segment = make_segment(at, id=f"s{next(self.seeds)}")
            rival = make_segment(number + count, id=f"s{next(self.seeds)}")
            is_contended = data.draw(st.booleans())
            self.run(update(segment), writer, update(rival) if is_contended else None)

    @precondition(lambda self: self.has(STARTED))
    @rule(writer=st.integers(0, 2), all_of_them=st.booleans(), data=st.data())
    def finish(self, writer: int, all_of_them: bool, data: Any) -> None:
        """A segment that stands where a readable one does takes its place in the same commit."""
        chosen = [self.choose(data, STARTED)]
        if all_of_them:
            chosen = [one for one in self.state.in_order() if one.state is STARTED]
        for segment in chosen:
            replaced = [
                replace(one, state=DELETING, at_ms=self.now_ms, replaced_until_ms=self.now_ms + 9)
                for one in self.state.in_order()
                if one.state is FINISHED and one.base_offset == segment.base_offset
            ]
            self.run(update(*replaced, replace(segment, state=FINISHED)), writer)

    @precondition(lambda self: self.has(STARTED, FINISHED))
    @rule(writer=st.integers(0, 2), data=st.data())
    def start_delete(self, writer: int, data: Any) -> None:
        segment = self.choose(data, STARTED, FINISHED)
        deleting = replace(segment, state=DELETING, at_ms=self.now_ms)
        rival = make_segment(0, id=f"s{next(self.seeds)}")
        self.run(update(deleting), writer, update(rival) if data.draw(st.booleans()) else None)

    @precondition(lambda self: self.has(DELETING))
    @rule(writer=st.integers(0, 2), data=st.data())
    def forget(self, writer: int, data: Any) -> None:
        segment = self.choose(data, DELETING)
        operation = Operation(
            lambda state: state.without(segment.id),
            lambda store, manifest: near(store, manifest, segment).forget([segment.id]),
        )
        self.run(operation, writer)

    @precondition(lambda self: self.has(STARTED, FINISHED, DELETING))
    @rule(writer=st.integers(0, 2))
    def expire_the_older_half(self, writer: int) -> None:
        """Log start first, then all at once, as expiry does."""
        half = self.state.in_order()[: (len(self.state.segments) + 1) // 2]
        offset = max(self.state.log_start, half[-1].base_offset)
        ids = [one.id for one in half]
        self.run(
            Operation(
                lambda state: replace(state, log_start=offset),
                lambda store, manifest: manifest.raise_log_start(offset),
            ),
            writer,
        )
        self.run(update(*(replace(one, state=DELETING) for one in half)), writer)
        if all(self.state.segments[id].state is DELETING for id in ids):

            def forget(state: State) -> State:
                for id in ids:
                    state = state.without(id)
                return state

            def forgotten(store: ObjectManifestStore, manifest: Manifest) -> Manifest:
                for one in half:
                    manifest = near(store, manifest, one)
                return manifest.forget(ids)

            self.run(Operation(forget, forgotten), writer)

    @rule(writer=st.integers(0, 2))
    def reopen(self, writer: int) -> None:
        self.writers[writer] = self.open_writer()

    @rule(writer=st.integers(0, 2), age=st.integers(0, 30))
    def retire(self, writer: int, age: int) -> None:
        self.retired_until_ms = max(self.retired_until_ms, self.now_ms - age)
        try:
            self.writers[writer].retire_versions(now_ms=self.now_ms, retention_ms=age)
        except Unavailable:
            return

    @rule(writer=st.integers(0, 2))
    def sweep(self, writer: int) -> None:
        name = f"operation-{len(self.operations)}"
        self.operations[name] = Operation(lambda state: state, lambda store, manifest: manifest)
        try:
            self.writers[writer].sweep_orphan_pages(writer=name, now_ms=self.now_ms)
        except Unavailable:
            self.replay([])
        else:
            self.replay([])
            assert self.reader.find_orphan_pages() == []

    @invariant()
    def newest_equals_the_model(self) -> None:
        reader = open_manifest(self.objects, 0)
        manifest = reader.load()
        self.check(reader, manifest)
        readable = [one for one in self.state.in_order() if one.is_readable]
        assert manifest.segment_count == len(self.state.segments)
        assert manifest.readable_count == len(readable)
        assert manifest.log_bytes == sum(one.size for one in readable)
        assert manifest.highest_offset == max((one.end_offset for one in readable), default=-1)
        for segment in readable:
            assert reader.find(manifest, segment.base_offset) == segment
        unreadable = [one for one in self.state.in_order() if not one.is_readable]
        assert list(reader.pending(manifest)) == unreadable
        assert len(manifest.segments) <= SMALL.inline_max
        levels = [ref.level for ref in manifest.pages]
        assert levels == sorted(levels, reverse=True)
        assert all(levels.count(level) <= SMALL.ref_max for level in levels)

    @invariant()
    def retained_versions_have_no_holes_and_do_not_change(self) -> None:
        listed = self.objects.list(HOME.manifest_folder)
        numbers = [HOME.find_version(entry.key) for entry in listed]
        versions = [number for number in numbers if number is not None]
        chain = [n for n in versions if all(v in versions for v in range(n, versions[-1] + 1))]
        reader = open_manifest(self.objects, 0)
        chosen = random.Random(len(self.history)).sample(chain, min(3, len(chain)))
        for version in [*chosen, *chain[:1]]:
            manifest = reader.at(version=version)
            try:
                self.check(reader, manifest)
            except ObjectNotFound:
                assert version != chain[-1]
                assert self.is_going(version), "a page of a retained version is gone"

    def is_going(self, version: int) -> bool:
        """Whether a retirement that broke off may have taken pages of the version already."""
        return self.reader.at(version=version + 1).at_ms <= self.retired_until_ms

    def check(self, reader: ObjectManifestStore, manifest: Manifest) -> None:
        state = self.history[manifest.version]
        assert list(reader.segments(manifest)) == state.in_order()
        assert manifest.log_start_offset == state.log_start


TestManifestModel = ManifestMachine.TestCase
TestManifestModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
