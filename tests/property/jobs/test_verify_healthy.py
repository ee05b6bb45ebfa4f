"""A bucket that was only ever copied to, compacted and erased from is found in order: G4, G6."""

import random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.property.jobs.test_compaction_agrees import Shared, make, shared_settings
from tests.support.cleaning_bench import RETENTION_MS
from tests.support.remote_compaction import RemoteCompaction
from tests.support.verification import verify_bench
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.scan import Matcher

PHASES = set(Phase) - {Phase.explain}


def erase(remote: RemoteCompaction, source: random.Random) -> None:
    key = b"key-%d" % source.randrange(12)
    remote.erase(
        Matcher.of(remote.bench.home.topic_id, [key]),
        ErasureRequest(
            topics=(remote.bench.home.topic,),
            id=f"request-{source.randrange(10**9)}",
            keys=frozenset({key}),
            buffer_bytes=1 << 16,
        ),
    )


@settings(max_examples=5, deadline=None, phases=PHASES)
@given(shared_settings, st.sampled_from([0.0, 0.3]), st.integers(0, 10_000))
def test_a_healthy_bucket_has_no_findings(
    shared: Shared, min_stale_ratio: float, seed: int
) -> None:
    """With open and aborted transactions, tombstones, and stale segments that were left."""
    source = random.Random(seed)
    twins = make({**shared, "min_stale_ratio": min_stale_ratio}, 200)
    for _ in range(4):
        twins.write(source)
        if source.random() < 0.4:
            twins.decide()
        twins.remote.copy()
        assert verify_bench(twins.remote.bench, task_bytes=900).findings == ()
        twins.advance(source.choice([1, 201, RETENTION_MS]))
        assert twins.remote.compact().error is None
        if source.random() < 0.4:
            erase(twins.remote, source)
        found = verify_bench(twins.remote.bench, range_bytes=200)
        assert found.findings == ()
        assert len(found.segments) == len(twins.remote.bench.readable())
