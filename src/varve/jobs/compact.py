"""Compacts topics in the cold tier: every key's latest record stays, as the local cleaner has it.

Invariant  partitions are independent: one that fails does not stop the others. The tasks of one
           stage of all partitions are carried out together.
Crash      docs/tiering.md; a job may be killed anywhere and run again.
"""

import random
from collections.abc import Sequence

from varve.foundation.clock import Clock, SystemClock
from varve.jobs.compact_partition import PartitionCompaction, Stage, Stages
from varve.jobs.compact_report import CompactionResult, PartitionResult
from varve.jobs.compact_settings import CompactSettings
from varve.jobs.distributor import Distributor
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
    of its partition. One job at a time works on a partition: a second one takes the first one's
    unfinished outputs for leftovers, and the first then leaves the old state as it is.
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
    results = _run_together(runs, distributor)
    return CompactionResult(job_id, tuple(results), clock.now_ms() - began_ms)


def _run_together(runs: Sequence[Stages], distributor: Distributor) -> list[PartitionResult]:
    """Takes all runs from stage to stage; the tasks of a stage go to the distributor at once."""
    results: dict[int, PartitionResult] = {}
    outcomes: dict[int, list[object] | None] = dict.fromkeys(range(len(runs)))
    while outcomes:
        stages: dict[int, Stage] = {}
        for number, given in outcomes.items():
            try:
                stages[number] = next(runs[number]) if given is None else runs[number].send(given)
            except StopIteration as end:
                results[number] = end.value
        outcomes = _carry_out(stages, distributor)
    return [results[number] for number in range(len(runs))]


def _carry_out(
    stages: dict[int, Stage], distributor: Distributor
) -> dict[int, list[object] | None]:
    names = list(dict.fromkeys(stage.name for stage in stages.values()))
    tasks = [task for stage in stages.values() for task in stage.tasks]
    found = distributor.run(", ".join(names), tasks) if tasks else []
    outcomes: dict[int, list[object] | None] = {}
    start = 0
    for number, stage in stages.items():
        outcomes[number] = found[start : start + len(stage.tasks)]
        start += len(stage.tasks)
    return outcomes
