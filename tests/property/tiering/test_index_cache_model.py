"""The cached indexes equal a model under any sequence: least recently wanted goes first."""

from collections import OrderedDict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.cold_builder import HOME
from tests.support.index_bench import DIRECTORY, KINDS, IndexBench, file_names, file_path, overwrite
from varve.tiering.index_cache import IndexCache

SEGMENTS = st.integers(0, 5)


class CachedIndexes(RuleBasedStateMachine):
    """Files in the order of their use, and how often the store had to be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = IndexBench(segment_count=6)
        self.held: OrderedDict[int, int] = OrderedDict()
        self.written: dict[int, int] = {}
        self.damaged: set[int] = set()
        self.hits = self.misses = 0

    @initialize(limit_bytes=st.integers(50, 700))
    def start(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.cache = self.open()

    def open(self) -> IndexCache:
        cache = self.tier.open(limit_bytes=self.limit_bytes, memory_bytes=0)
        cache.load()
        return cache

    @rule(number=SEGMENTS)
    def get(self, number: int) -> None:
        segment = self.tier.segments[number]
        self.tier.clock.advance(1)
        self.tier.check(segment, self.cache.get(HOME, segment))
        if number in self.held and number not in self.damaged:
            self.held.move_to_end(number)
            self.hits += 1
            return
        self.misses += 1
        self.drop(number)
        size = self.tier.size(segment)
        if size <= self.limit_bytes:
            while sum(self.held.values()) + size > self.limit_bytes:
                self.damaged.discard(self.held.popitem(last=False)[0])
            self.held[number] = size
            self.written[number] = self.tier.clock.now_ms()

    @rule(number=SEGMENTS)
    def forget(self, number: int) -> None:
        self.cache.forget(self.tier.segments[number].id)
        self.drop(number)

    @rule(number=SEGMENTS, kind=st.sampled_from(KINDS[:2]))
    def damage(self, number: int, kind: str) -> None:
        if number in self.held:
            path = file_path(self.tier.segments[number], kind)
            data = self.tier.disk.read(path)
            modified_ms = self.tier.disk.info(path).modified_ms
            overwrite(self.tier.disk, path, b"\xff" * len(data))
            self.tier.disk.set_modified_ms(path, modified_ms)
            self.damaged.add(number)

    @rule()
    def restart(self) -> None:
        self.cache.close()
        self.cache = self.open()
        self.hits = self.misses = 0
        self.held = OrderedDict(sorted(self.held.items(), key=lambda one: self.written[one[0]]))

    def drop(self, number: int) -> None:
        self.held.pop(number, None)
        self.damaged.discard(number)

    @invariant()
    def agrees(self) -> None:
        usage = self.cache.usage()
        assert (usage.hits, usage.misses) == (self.hits, self.misses)
        assert usage.held_bytes == sum(self.held.values()) <= self.limit_bytes
        disk = self.tier.disk
        names = set(disk.names(DIRECTORY)) if disk.exists(DIRECTORY) else set()
        held = [file_names(self.tier.segments[number]) for number in self.held]
        assert names == set().union(*held)

    def teardown(self) -> None:
        self.cache.close()


TestCachedIndexes = CachedIndexes.TestCase
TestCachedIndexes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
