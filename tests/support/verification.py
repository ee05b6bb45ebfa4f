"""A verification of the bucket of a bench, in this process."""

import random

from tests.support.store_access import StoreAccess
from tests.support.tier_bench import TierBench
from varve.jobs.tasks import LocalRunner, TaskRunner
from varve.jobs.verify.result import PartitionVerdict
from varve.jobs.verify.verification import verify_partitions


def verify_bench(
    bench: TierBench,
    *,
    task_bytes: int = 1 << 20,
    range_bytes: int = 1 << 20,
    runner: TaskRunner | None = None,
) -> PartitionVerdict:
    """What is found of the only partition of a bench."""
    (found,) = verify_partitions(
        StoreAccess(bench.bucket, random.Random(5)),
        [bench.home],
        runner=runner or LocalRunner(),
        now_ms=bench.hot.now_ms,
        task_bytes=task_bytes,
        buffer_bytes=1 << 20,
        range_bytes=range_bytes,
    )
    return found
