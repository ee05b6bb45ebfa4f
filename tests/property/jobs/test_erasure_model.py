"""Whatever a topic holds, an erasure takes the records of its keys and nothing else: G5, G8."""

import random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.cleaning_bench import PARTITION, TOPIC_ID
from tests.support.log_model import split_batches
from tests.support.remote_compaction import RemoteCompaction, append_any
from tests.support.store_access import StoreAccess
from tests.support.tier_bench import TierBench, tiered
from varve.cleaning.removals.audit import audit_partition
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import LOG
from varve.jobs.erase.local import LocalErasure
from varve.jobs.erase.request import ErasureRequest, RescanMode
from varve.jobs.erase.scan import Matcher
from varve.jobs.erase.tasks import Rescan, rescan_local, rescan_remote
from varve.jobs.tasks import LocalRunner
from varve.records import Batch
from varve.tiering.evidence import read_remote_removals

PHASES = set(Phase) - {Phase.explain}  # it traces every line, and an erasure runs many
KEYS = [b"key-%d" % number for number in range(8)]


def hot_batches(remote: RemoteCompaction) -> list[bytes]:
    remote.hot.log.flush()
    view = remote.hot.log.view
    return [
        batch
        for one in view
        for batch in split_batches(remote.hot.disk.read(one.path(LOG))[: one.size])
    ]


def remote_batches(remote: RemoteCompaction) -> list[bytes]:
    return [
        batch
        for one in remote.bench.readable()
        for batch in split_batches(remote.bench.bucket.get(remote.bench.home.part_key(one, "log")))
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


def erase(remote: RemoteCompaction, matcher: Matcher, *, first_hot: bool) -> None:
    reach = StoreAccess(remote.bench.bucket, random.Random(5))

    request = ErasureRequest(topics=("t",), id="r", keys=frozenset({b"k"}), buffer_bytes=4096)

    def erase_hot() -> None:
        erasure = LocalErasure(
            remote.hot.log,
            matcher,
            request,
            fs=remote.hot.disk,
            clock=remote.hot.clock,
        )
        erasure.rewrite(erasure.search().matched)

    def erase_remote() -> None:
        remote.erase(matcher, request)

    for one in (erase_hot, erase_remote) if first_hot else (erase_remote, erase_hot):
        one()
    for mode in RescanMode:
        rescan = Rescan()
        rescan_remote(rescan, reach, [remote.bench.home], matcher, mode=mode, runner=LocalRunner())
        rescan_local(rescan, remote.hot.disk, remote.hot.log.directory, matcher)
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
    remote = RemoteCompaction(
        TierBench(
            tiered(
                cleanup_policy=policy, segment_bytes=source.choice([400, 1 << 20]), retention_ms=-1
            )
        )
    )
    for _ in range(source.randint(1, 5)):
        append_any(source, [remote.hot], KEYS)
        if source.random() < 0.9:
            remote.hot.roll()
        if source.random() < 0.5:
            remote.copy()
        if is_compacted and source.random() < 0.3:
            remote.hot.clean()
        if is_compacted and source.random() < 0.3:
            assert remote.compact().error is None
    wanted = set(source.sample([*KEYS, b"nobody"], count))
    hot_before, remote_before = hot_batches(remote), remote_batches(remote)
    end, stable = remote.hot.log.end_offset, remote.hot.log.last_stable_offset
    state_before = remote.state()
    matcher = Matcher.of(encode_topic_id(TOPIC_ID), sorted(wanted))
    erase(remote, matcher, first_hot=source.random() < 0.5)
    expect_only_matches_gone(hot_before, hot_batches(remote), wanted)
    expect_only_matches_gone(remote_before, remote_batches(remote), wanted)
    assert (remote.hot.log.end_offset, remote.hot.log.last_stable_offset) == (end, stable)
    remote.check()
    assert remote.state() == {key: one for key, one in state_before.items() if key not in wanted}
    report = audit_partition(remote.hot.disk, remote.hot.log.directory, deep=True)
    assert report.is_clean, report.findings
    read_remote_removals(remote.bench.bucket, remote.bench.manifests())
    remote.bench.reopen()
    assert remote.hot.log.end_offset == end
    expect_only_matches_gone(hot_before, hot_batches(remote), wanted)
    check_life_goes_on(remote, wanted, is_compacted=is_compacted)


def check_life_goes_on(remote: RemoteCompaction, wanted: set[bytes], *, is_compacted: bool) -> None:
    """More is written, copied and compacted; nothing of it brings a record back."""
    for producer in list(remote.hot.log.producers.ongoing):
        remote.hot.end_transaction(producer.producer_id, committed=True)
    remote.hot.roll()
    assert remote.bench.copier.copy(PARTITION, remote.hot.now_ms).error is None
    before = remote.state()
    if is_compacted:
        remote.hot.clean()
        assert remote.compact().error is None
        assert remote.state() == before
    assert not wanted & {one.key for data in hot_batches(remote) for one in Batch(data).records()}
    report = audit_partition(remote.hot.disk, remote.hot.log.directory, deep=True)
    assert report.is_clean, report.findings
