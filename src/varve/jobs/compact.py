"""Compacts topics in the cold tier: every key's latest record stays, as the local cleaner has it.

Invariant  partitions are independent: one that fails does not stop the others. The tasks of one
           stage of all partitions are carried out together.
Crash      docs/tiering.md; a job may be killed anywhere and run again.
"""

import random
from collections.abc import Sequence

from varve.foundation.clock import Clock, SystemClock
from varve.jobs.compact_partition import PartitionCompaction
from varve.jobs.compact_report import CompactionResult
from varve.jobs.compact_settings import CompactSettings
from varve.jobs.distributor import Distributor
from varve.jobs.stages import run_together
from varve.jobs.tier_address import TierAddress, find_topic
from varve.jobs.tier_reach import AddressReach, TierReach
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.page_store import new_id


def compact(
    address: TierAddress,
    topics: Sequence[str],
    *,
    settings: CompactSettings,
    distributor: Distributor,
    clock: Clock | None = None,
) -> CompactionResult:
    """Compacts what is due of these topics; `settings` hold for all of them.

    Raises NotFound for a topic that the tier does not hold; what fails later is told in the result
    of its partition. One job at a time works on a partition: a second one is told who does.
    """
    homes = [home for name in topics for home in find_topic(address, name).partitions]
    return compact_partitions(
        AddressReach(address),
        homes,
        settings=settings,
        distributor=distributor,
        clock=clock or SystemClock(),
        random=random.Random(),
    )


def compact_partitions(
    reach: TierReach,
    homes: Sequence[ColdPartition],
    *,
    settings: CompactSettings,
    distributor: Distributor,
    clock: Clock,
    random: random.Random,
) -> CompactionResult:
    """Compacts what is due of these partitions."""
    began_ms = clock.now_ms()
    job_id = f"compact-{new_id(random)}"
    runs = [
        PartitionCompaction(
            home, reach, settings, clock=clock, random=random, job_id=job_id
        ).stages()
        for home in homes
    ]
    results = run_together(runs, distributor)
    return CompactionResult(job_id, tuple(results), clock.now_ms() - began_ms)
