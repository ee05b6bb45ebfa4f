"""Whatever a topic holds, an erasure takes the records of its keys and nothing else: G5, G8."""

import random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.cleaning_bench import PARTITION, TOPIC_ID
from tests.support.cold_compaction import ColdCompaction
from tests.support.log_model import split_batches
from tests.support.store_access import StoreAccess
from tests.support.tier_bench import TierBench, tiered
from varve.cleaning.removals.audit import audit_partition
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import LOG
from varve.jobs.erase.local import LocalErasure
from varve.jobs.erase.remote import RemoteErasure
from varve.jobs.erase.request import RescanMode
from varve.jobs.erase.rescan import Rescan, rescan_local, rescan_remote
from varve.jobs.erase.scan import Matcher
from varve.jobs.tasks import LocalRunner, run_together
from varve.records import Batch, Codec, Record
from varve.tiering.expiry import read_remote_removals

PHASES = set(Phase) - {Phase.explain}  # it traces every line, and an erasure runs many
KEYS = [b"key-%d" % number for number in range(8)]


def write(cold: ColdCompaction, source: random.Random) -> None:
    """A segment of batches of every kind over few keys."""
    hot = cold.hot
    for _ in range(source.randint(1, 7)):
        producer_id = source.choice([-1, -1, 1, 2])
        if producer_id > 0 and source.random() < 0.4:
            hot.end_transaction(producer_id, committed=source.random() < 0.5)
            continue
        records = [
            Record(
                source.choice(KEYS),
                None if source.random() < 0.2 else source.randbytes(source.randrange(20)),
                timestamp=hot.now_ms - source.randrange(50),
            )
            for _ in range(source.randint(1, 4))
        ]
        is_transactional = producer_id > 0 and source.random() < 0.7
        hot.append(
            records,
            codec=source.choice(list(Codec)),
            producer_id=producer_id,
            transactional=is_transactional,
        )
    if source.random() < 0.9:
        hot.roll()


def hot_batches(cold: ColdCompaction) -> list[bytes]:
    cold.hot.log.flush()
    view = cold.hot.log.view
    return [
        batch
        for one in view
        for batch in split_batches(cold.hot.disk.read(one.path(LOG))[: one.size])
    ]


def cold_batches(cold: ColdCompaction) -> list[bytes]:
    return [
        batch
        for one in cold.bench.readable()
        for batch in split_batches(cold.bench.bucket.get(cold.bench.home.part_key(one, "log")))
    ]


def expect_only_matches_gone(before: list[bytes], after: list[bytes], wanted: set[bytes]) -> None:
    """Batches without a match are as they were; of the others the other records are left."""
    left = {Batch(one).header.base_offset: one for one in after}
    assert len(left) == len(after)
    for data in before:
        batch = Batch(data)
        header = batch.header
        now = left.pop(header.base_offset, None)
        if header.is_control or not any(one.key in wanted for one in batch.records()):
            assert now == data, "a batch without a match was touched"
            continue
        kept = [one for one in batch.records() if one.key not in wanted]
        if now is None:
            assert not kept, "a batch went with records that were to stay"
            continue
        found = Batch(now)
        assert found.records() == kept
        same = ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence")
        for name in (*same, "partition_leader_epoch", "is_transactional"):
            assert getattr(found.header, name) == getattr(header, name), name
    assert not left, "a batch came from nowhere"


def erase(cold: ColdCompaction, matcher: Matcher, *, first_hot: bool) -> None:
    reach = StoreAccess(cold.bench.bucket, random.Random(5))

    def erase_hot() -> None:
        LocalErasure(
            cold.hot.log,
            matcher,
            fs=cold.hot.disk,
            clock=cold.hot.clock,
            topic_id=TOPIC_ID.bytes,
            request="r",
            buffer_bytes=4096,
        ).run(is_dry_run=False)

    def erase_cold() -> None:
        run = RemoteErasure(
            cold.bench.home,
            reach,
            matcher,
            clock=cold.hot.clock,
            random=random.Random(6),
            request="r",
            grace_ms=0,
            buffer_bytes=4096,
        )
        (found,) = run_together([run.stages(is_dry_run=False)], LocalRunner())
        assert found.error is None, found.error

    for one in (erase_hot, erase_cold) if first_hot else (erase_cold, erase_hot):
        one()
    for mode in RescanMode:
        rescan = Rescan()
        rescan_remote(rescan, reach, [cold.bench.home], matcher, mode=mode, runner=LocalRunner())
        rescan_local(rescan, cold.hot.disk, cold.hot.log.directory, matcher)
        rescan.check()


@settings(max_examples=20, phases=PHASES)
@given(
    seed=st.integers(0, 1 << 32),
    policy=st.sampled_from([("compact",), ("delete",), ("compact", "delete")]),
    count=st.integers(1, 4),
)
def test_records_after_are_those_before_without_the_matches(
    seed: int, policy: tuple[str, ...], count: int
) -> None:
    source = random.Random(seed)
    is_compacted = "compact" in policy
    cold = ColdCompaction(
        TierBench(
            tiered(
                cleanup_policy=policy, segment_bytes=source.choice([400, 1 << 20]), retention_ms=-1
            )
        )
    )
    for _ in range(source.randint(1, 5)):
        write(cold, source)
        if source.random() < 0.5:
            cold.copy()
        if is_compacted and source.random() < 0.3:
            cold.hot.clean()
        if is_compacted and source.random() < 0.3:
            assert cold.compact().error is None
    wanted = set(source.sample([*KEYS, b"nobody"], count))
    hot_before, cold_before = hot_batches(cold), cold_batches(cold)
    end, stable = cold.hot.log.end_offset, cold.hot.log.last_stable_offset
    state_before = cold.state()
    matcher = Matcher.of(encode_topic_id(TOPIC_ID), sorted(wanted))
    erase(cold, matcher, first_hot=source.random() < 0.5)
    expect_only_matches_gone(hot_before, hot_batches(cold), wanted)
    expect_only_matches_gone(cold_before, cold_batches(cold), wanted)
    assert (cold.hot.log.end_offset, cold.hot.log.last_stable_offset) == (end, stable)
    cold.check()
    assert cold.state() == {key: one for key, one in state_before.items() if key not in wanted}
    report = audit_partition(cold.hot.disk, cold.hot.log.directory, deep=True)
    assert report.is_clean, report.findings
    read_remote_removals(cold.bench.bucket, cold.bench.manifests())
    cold.bench.reopen()
    assert cold.hot.log.end_offset == end
    expect_only_matches_gone(hot_before, hot_batches(cold), wanted)
    check_life_goes_on(cold, wanted, is_compacted=is_compacted)


def check_life_goes_on(cold: ColdCompaction, wanted: set[bytes], *, is_compacted: bool) -> None:
    """More is written, copied and compacted; nothing of it brings a record back."""
    for producer in list(cold.hot.log._state.producers.ongoing):
        cold.hot.end_transaction(producer.producer_id, committed=True)
    cold.hot.roll()
    assert cold.bench.copier.copy(PARTITION, cold.hot.now_ms).error is None
    before = cold.state()
    if is_compacted:
        cold.hot.clean()
        assert cold.compact().error is None
        assert cold.state() == before
    assert not wanted & {one.key for data in hot_batches(cold) for one in Batch(data).records()}
    report = audit_partition(cold.hot.disk, cold.hot.log.directory, deep=True)
    assert report.is_clean, report.findings
