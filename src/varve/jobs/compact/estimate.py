"""What carrying out a plan of compaction asks of the object store, and what that costs."""

from dataclasses import asdict, dataclass
from typing import Final

from varve.cleaning.compaction.key_plan import ENTRY_BYTES
from varve.cleaning.compaction.plan import CleaningPlan
from varve.cleaning.compaction.rewrite import CHUNK_BYTES
from varve.cleaning.compaction.segment_plan import SegmentFigures
from varve.cleaning.removals.removal import Reason
from varve.object_store.prices import PriceTable, RequestKind

_PARTS: Final = 7
"""Objects of a segment that is written; each is looked up afterwards."""
_READS_PER_INPUT: Final = 4
"""Besides the data: the tables of its key index, and what the group takes over from its last."""
_COMMIT_WRITES: Final = 2
_COMMIT_LISTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactEstimate:
    """About what a run will do; `groups` are the segments that will be written.

    `bytes_left` is the size of the partition's data afterwards.
    """

    groups: int
    segments: int
    bytes_left: int
    read_bytes: int
    written_bytes: int
    read_requests: int
    write_requests: int
    cost: float
    currency: str
    prices: str

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def estimate_plan(
    plan: CleaningPlan[SegmentFigures], *, log_bytes: int, prices: PriceTable
) -> CompactEstimate:
    """From the plan alone; `log_bytes` are those of the partition before."""
    inputs = [one for group in plan.groups for one in group]
    # Batches that go as a whole are not read, so this is an upper bound.
    read_bytes = sum(one.size for one in inputs)
    planned = sum(one.planned_bytes for one in inputs)
    kept = sum(one.records.get(Reason.KEPT, 0) for one in inputs)
    reads = sum(-(-one.size // CHUNK_BYTES) + _READS_PER_INPUT for one in inputs)
    reads += _PARTS * len(plan.groups)
    # An announcement for each group, then evidence and one manifest for all.
    writes = (_PARTS + _COMMIT_WRITES - 1) * len(plan.groups) + _COMMIT_WRITES
    lists = _COMMIT_LISTS * (len(plan.groups) + 1)
    counts = {RequestKind.READ: reads, RequestKind.WRITE: writes, RequestKind.LIST: lists}
    return CompactEstimate(
        groups=len(plan.groups),
        segments=len(inputs),
        bytes_left=log_bytes - read_bytes + planned,
        read_bytes=read_bytes,
        written_bytes=planned + kept * ENTRY_BYTES,
        read_requests=reads,
        write_requests=writes,
        cost=prices.requests_cost(counts) + prices.transfer_cost(read_bytes),
        currency=prices.currency,
        prices=prices.name,
    )
