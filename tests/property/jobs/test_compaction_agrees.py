"""The local cleaner, the compaction of the cold tier and a naive model leave the same: G4, G5.

Two logs get the same appends. One is cleaned on its disk, the other is copied and its bucket is
compacted, by as many ranges of hashes as there may be.
"""

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.cleaning_bench import RETENTION_MS, CleaningBench, compacted
from tests.support.cleaning_checks import check_exact, foretell
from tests.support.cleaning_model import check_batches
from tests.support.remote_compaction import RemoteCompaction, append_any
from tests.support.tier_bench import TierBench, tiered
from varve.jobs.key_plans import INLINE_BYTES

Shared = dict[str, Any]
KEYS = [b"key-%d" % number for number in range(12)]
PHASES = set(Phase) - {Phase.explain}  # it traces every line, and a compaction runs many

shared_settings = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from([400, 900, 2500, 1 << 20]),
        "segment_index_bytes": st.sampled_from([24, 1000]),
        "index_interval_bytes": st.sampled_from([0, 150]),
        "min_compaction_lag_ms": st.sampled_from([0, 0, 200]),
        "delete_retention_ms": st.sampled_from([0, 300, RETENTION_MS]),
        "cleanup_policy": st.sampled_from([("compact",), ("compact", "delete")]),
    }
)


@dataclass
class Twins:
    """Two logs with one history."""

    plain: CleaningBench
    remote: RemoteCompaction

    @property
    def benches(self) -> tuple[CleaningBench, CleaningBench]:
        return self.plain, self.remote.hot

    def write(self, source: random.Random) -> None:
        """A segment of batches of every kind over few keys."""
        append_any(source, self.benches, KEYS)
        self.roll()

    def roll(self) -> None:
        for bench in self.benches:
            bench.roll()

    def decide(self) -> None:
        for bench in self.benches:
            for one in bench.log.producers.ongoing:
                bench.end_transaction(one.producer_id, committed=True)
        self.roll()

    def advance(self, milliseconds: int) -> None:
        for bench in self.benches:
            bench.advance(milliseconds)


def make(shared: Shared, range_bytes: int, inline_bytes: int = INLINE_BYTES) -> Twins:
    remote = RemoteCompaction(TierBench(tiered(**shared)), range_bytes, inline_bytes=inline_bytes)
    return Twins(CleaningBench(compacted(**shared)), remote)


@settings(max_examples=5, deadline=None, phases=PHASES)
@given(
    shared_settings,
    st.sampled_from([64, 200, 1 << 20]),
    st.sampled_from([0, INLINE_BYTES]),
    st.integers(0, 10_000),
)
def test_local_cleaning_remote_compaction_and_the_model_agree(
    shared: Shared, range_bytes: int, inline_bytes: int, seed: int
) -> None:
    source = random.Random(seed)
    twins = make(shared, range_bytes, inline_bytes)
    for _ in range(3):
        for _ in range(source.randint(1, 4)):
            twins.write(source)
        twins.decide()
        twins.remote.copy()
        twins.advance(source.choice([1, 201, 400, RETENTION_MS]))
        foretold = foretell(twins.plain)
        check_exact(twins.plain, foretold, twins.plain.clean())
        result = twins.remote.compact()
        assert result.error is None
        end = foretold.run.first_uncleanable_offset
        assert result.cleaned_up_to == end
        found = [one for one in twins.remote.batches() if one.base_offset < end]
        check_batches(found, foretold.outcome.batches)
        assert [one.data for one in twins.remote.batches()] == [
            one.data for one in twins.plain.batches()
        ]
        aborted = sorted(twins.remote.aborted(), key=lambda one: one.last_offset)
        assert aborted == sorted(foretold.outcome.aborted, key=lambda one: one.last_offset)
        twins.remote.check()


@settings(max_examples=5, deadline=None, phases=PHASES)
@given(shared_settings, st.sampled_from([0.0, 0.3]), st.integers(0, 10_000))
def test_a_reader_of_the_compacted_bucket_finds_the_state_of_the_history(
    shared: Shared, min_stale_ratio: float, seed: int
) -> None:
    """Open transactions and stale segments that are not worth a rewrite included."""
    source = random.Random(seed)
    twins = make({**shared, "min_stale_ratio": min_stale_ratio}, 200, 0)
    remote = twins.remote
    appended = {}
    for _ in range(6):
        twins.write(source)
        if source.random() < 0.3:
            twins.decide()
        twins.remote.copy()
        twins.advance(source.choice([1, 201, RETENTION_MS]))
        assert remote.compact().error is None
        remote.check()
        batches = remote.hot.history.batches
        appended = {record.offset: record for batch in batches for record in batch.records}
        found = [record for batch in remote.batches() for record in batch.records]
        assert all(appended[record.offset] == record for record in found)
        end = remote.bench.manifests().load().highest_offset + 1
        if remote.hot.log.last_stable_offset == remote.hot.log.end_offset == end:
            assert remote.state() == remote.true_state()
