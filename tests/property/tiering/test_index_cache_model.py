"""The cached indexes equal a model under any sequence: least recently wanted goes first."""

from collections import OrderedDict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.index_bench import DIRECTORY, KINDS, IndexBench, file_name, overwrite
from varve.tiering.read.index_cache import IndexCache

NUMBERS = st.integers(0, 5)
KIND = st.sampled_from(KINDS)


class CachedIndexes(RuleBasedStateMachine):
    """Files in the order of their use, and how often the store had to be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = IndexBench(segment_count=6)
        self.held: OrderedDict[str, int] = OrderedDict()
        self.written: dict[str, int] = {}
        self.damaged: set[str] = set()
        self.hits = self.misses = 0

    @initialize(limit_bytes=st.integers(20, 400))
    def start(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.cache = self.open()

    def open(self) -> IndexCache:
        cache = self.tier.open(limit_bytes=self.limit_bytes, memory_bytes=0)
        cache.load()
        return cache

    @rule(number=NUMBERS, kind=KIND)
    def get(self, number: int, kind: str) -> None:
        segment = self.tier.segments[number]
        name, size = file_name(segment, kind), self.tier.size(segment, kind)
        self.tier.clock.advance(1)
        self.tier.use(self.cache, segment, kind)
        if not size or (name in self.held and name not in self.damaged):
            if size:
                self.held.move_to_end(name)
            self.hits += 1
            return
        self.misses += 1
        self.drop(name)
        if size <= self.limit_bytes:
            while sum(self.held.values()) + size > self.limit_bytes:
                self.damaged.discard(self.held.popitem(last=False)[0])
            self.held[name] = size
            self.written[name] = self.tier.clock.now_ms()

    @rule(number=NUMBERS, kind=KIND)
    def damage(self, number: int, kind: str) -> None:
        name = file_name(self.tier.segments[number], kind)
        if name in self.held:
            path = f"{DIRECTORY}/{name}"
            modified_ms = self.tier.disk.info(path).modified_ms
            overwrite(self.tier.disk, path, b"\xff" * self.held[name])
            self.tier.disk.set_modified_ms(path, modified_ms)
            self.damaged.add(name)

    @rule()
    def restart(self) -> None:
        self.cache.close()
        self.cache = self.open()
        self.hits = self.misses = 0
        self.held = OrderedDict(sorted(self.held.items(), key=lambda one: self.written[one[0]]))

    def drop(self, name: str) -> None:
        self.held.pop(name, None)
        self.damaged.discard(name)

    @invariant()
    def agrees(self) -> None:
        usage = self.cache.usage()
        assert (usage.hits, usage.misses) == (self.hits, self.misses)
        assert usage.held_bytes == sum(self.held.values()) <= self.limit_bytes
        disk = self.tier.disk
        assert set(disk.names(DIRECTORY) if disk.exists(DIRECTORY) else ()) == set(self.held)

    def teardown(self) -> None:
        self.cache.close()


TestCachedIndexes = CachedIndexes.TestCase
TestCachedIndexes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
