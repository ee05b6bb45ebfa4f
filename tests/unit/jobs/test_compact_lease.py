"""One job at a time rewrites a partition, and a dry run leaves no trace: G3, G5."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support.remote_compaction import RemoteCompaction
from tests.support.task_runners import InterferingRunner
from tests.support.tier_bench import TierBench, tiered
from varve.cleaning.removals.removal import Reason
from varve.foundation.errors import Unavailable
from varve.jobs.tasks import LocalRunner
from varve.tiering.manifest.segment import ANNOUNCEMENT_TIMEOUT_MS, SegmentState
from varve.tiering.partition_lease import RENEW_MS, find_lease, hold_lease


def make(*segments: int) -> RemoteCompaction:
    remote = RemoteCompaction(TierBench(tiered()))
    remote.bench.fill(*(segments or (4, 4)))
    remote.copy()
    return remote


def objects_of(remote: RemoteCompaction) -> dict[str, bytes]:
    bucket = remote.bench.bucket
    return {entry.key: bytes(bucket.get(entry.key)) for entry in bucket.list("")}


def leave_lease(remote: RemoteCompaction, *, host: str, pid: int = 1) -> None:
    """A job that was killed, or is at work elsewhere."""
    now_ms = remote.hot.now_ms
    lease = {"job": "compact-x", "host": host, "pid": pid, "began_ms": now_ms, "at_ms": now_ms}
    remote.bench.bucket.put(remote.bench.home.lease_key, json.dumps(lease).encode())


def test_a_second_job_is_told_who_is_at_work_and_the_first_ends_well() -> None:
    remote = make()
    second: list[str | None] = []

    def compact_too() -> None:
        remote.runner = LocalRunner()
        second.append(remote.compact().error)

    remote.runner = InterferingRunner(compact_too, stage="rewrite")
    result = remote.compact()
    assert (result.error, result.voided_groups) == (None, 0)
    assert result.records[Reason.SUPERSEDED] == 4
    (error,) = second
    assert error is not None
    assert "another job rewrites it" in error
    assert "--take-over" in error
    assert find_lease(remote.bench.bucket, remote.bench.home) is None
    remote.check()


def test_a_lease_of_another_host_holds_for_a_day_or_until_told() -> None:
    remote = make()
    leave_lease(remote, host="elsewhere")
    assert "on elsewhere" in str(remote.compact().error)
    over = replace(remote.settings(), takes_over=True)
    assert remote.compact(settings=over).error is None
    leave_lease(remote, host="elsewhere")
    remote.hot.advance(ANNOUNCEMENT_TIMEOUT_MS)
    assert remote.compact().error is None
    assert find_lease(remote.bench.bucket, remote.bench.home) is None


def test_a_lease_of_a_process_that_is_gone_or_no_lease_is_taken_over() -> None:
    remote = make()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    leave_lease(remote, host=os.uname().nodename, pid=gone.pid)
    assert remote.compact().error is None
    leave_lease(remote, host=os.uname().nodename, pid=os.getppid())
    assert "another job" in str(remote.compact().error)
    remote.bench.bucket.put(remote.bench.home.lease_key, b"no lease")
    assert remote.compact().error is None


@pytest.mark.parametrize(
    "change",
    [
        {"began_ms": 1e30},
        {"began_ms": 10**30},
        {"began_ms": float("inf")},
        {"at_ms": 10**30},
        {"pid": 10**30},
        {"pid": 0},
        {"pid": -1},
        {"pid": "1"},
    ],
)
def test_a_lease_of_absurd_numbers_is_none(change: dict[str, object]) -> None:
    remote = make()
    leave_lease(remote, host=os.uname().nodename)
    key, bucket = remote.bench.home.lease_key, remote.bench.bucket
    bucket.put(key, json.dumps({**json.loads(bucket.get(key)), **change}).encode())
    assert find_lease(bucket, remote.bench.home) is None
    assert remote.compact().error is None


def test_a_lease_is_renewed_and_one_that_was_taken_over_is_noticed() -> None:
    remote = make()
    bucket, home, clock = remote.bench.bucket, remote.bench.home, remote.hot.clock
    with hold_lease(bucket, home, "job-1", clock=clock, takes_over=False) as held:
        remote.hot.advance(RENEW_MS)
        held.renew()
        found = find_lease(bucket, home)
        assert found is not None
        assert found.at_ms == remote.hot.now_ms
        leave_lease(remote, host="elsewhere")
        held.renew()
        remote.hot.advance(RENEW_MS)
        with pytest.raises(Unavailable, match="compact-x has the lease of job-1"):
            held.renew()
    assert find_lease(bucket, home) is not None, "it is another's"


def test_a_dry_run_changes_no_object_and_tells_what_a_run_then_does() -> None:
    remote = make(40, 40, 40)
    before = objects_of(remote)
    foretold = remote.compact(settings=replace(remote.settings(), is_dry_run=True))
    assert objects_of(remote) == before
    assert foretold.error is None
    assert foretold.estimate is not None
    assert foretold.estimate.read_requests > 0
    done = remote.compact()
    assert done.estimate is None
    assert foretold.records == done.records
    assert foretold.bytes == done.bytes
    assert foretold.segments_rewritten == done.segments_rewritten
    assert foretold.segments_after == done.segments_after
    assert abs(foretold.bytes_after - done.bytes_after) < 0.1 * done.bytes_before
    assert json.loads(json.dumps(foretold.to_json()))["estimate"]["groups"] == 1


def test_a_dry_run_neither_sweeps_nor_makes_key_indexes() -> None:
    remote = make()
    remote.compact()
    remote.hot.advance(5000)
    assert remote.pending(SegmentState.DELETE_STARTED) > 0
    remote.bench.fill(4)
    remote.copy()
    last = remote.bench.readable()[-1]
    remote.bench.bucket.delete([remote.bench.home.part_key(last, "keys")])
    before = objects_of(remote)
    result = remote.compact(settings=replace(remote.settings(), is_dry_run=True))
    assert objects_of(remote) == before
    assert f"segment {last.base_offset} has no key index yet" in result.note
    assert result.swept == 0


def test_a_dry_run_goes_on_beside_a_job_that_is_at_work() -> None:
    remote = make()
    leave_lease(remote, host="elsewhere")
    result = remote.compact(settings=replace(remote.settings(), is_dry_run=True))
    assert result.error is None
    assert result.records[Reason.SUPERSEDED] == 4


def test_leases_of_two_partitions_do_not_meet() -> None:
    remote = make()
    bucket, home, clock = remote.bench.bucket, remote.bench.home, remote.hot.clock
    other = replace(home, partition=home.partition + 1)
    with (
        hold_lease(bucket, home, "a", clock=clock, takes_over=False),
        hold_lease(bucket, other, "b", clock=clock, takes_over=False),
    ):
        assert find_lease(bucket, other) is not None
