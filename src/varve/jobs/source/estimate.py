"""What a read will ask of the object store, and what that costs, before it is made."""

from collections.abc import Mapping
from dataclasses import dataclass

from varve.jobs.source.filters import SourceFilters
from varve.jobs.source.options import Mode, SourceOptions, parse_options
from varve.jobs.source.pieces import ColdPiece
from varve.jobs.source.plan import make_tasks, plan_read
from varve.jobs.source.served_tier import learn_tier
from varve.object_store.prices import FREE, PriceTable, RequestKind, default_prices
from varve.tiering.copy.segment_upload import KEYS_PART

_KEY_LOOKUP_REQUESTS = 2
_KEY_PLAN_REQUESTS = 6
"""For each segment whose key index plans a read of the latest state: header, entries, batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEstimate:
    """An upper bound: retries aside, a read asks for no more than this.

    `records` counts those of all segments touched. With keys to look for, most segments that have a
    key index cost `_KEY_LOOKUP_REQUESTS` only.
    """

    partitions: int
    segments: int
    tasks: int
    records: int
    requests: int
    cold_bytes: int
    hot_bytes: int
    cost: float
    currency: str
    prices: str


def estimate(
    options: SourceOptions | Mapping[str, str],
    filters: SourceFilters = SourceFilters(),  # noqa: B008  a value that never changes
    *,
    prices: PriceTable | None = None,
) -> ReadEstimate:
    """Plans a read, which takes a few requests itself, and reads no data."""
    chosen = learn_tier(options if isinstance(options, SourceOptions) else parse_options(options))
    plan = plan_read(chosen, filters)
    tasks = make_tasks(plan, chosen)
    cold = [one for task in tasks for one in task.pieces if isinstance(one, ColdPiece)]
    segments = {(one.partition, one.segment.id): one.segment for one in cold}
    requests = plan.requests + sum(piece.requests for piece in cold)
    if filters.keys is not None:
        indexed = sum(one.find_part(KEYS_PART) is not None for one in segments.values())
        requests += _KEY_LOOKUP_REQUESTS * indexed
    cold_bytes = sum(piece.size for piece in cold)
    if chosen.mode is Mode.LATEST and chosen.is_committed and filters.keys is None:
        # The driver reads whole indexes; a task once more the batches of what it reads.
        keys = [one.find_part(KEYS_PART) for one in segments.values()]
        requests += _KEY_PLAN_REQUESTS * sum(part is not None for part in keys)
        cold_bytes += sum(2 * part.size for part in keys if part is not None)
    table = prices or _find_prices(chosen)
    cost = table.requests_cost({RequestKind.READ: requests}) + table.transfer_cost(cold_bytes)
    return ReadEstimate(
        partitions=len({piece.partition for piece in plan.pieces}),
        segments=len(segments),
        tasks=len(tasks),
        records=sum(segment.record_count for segment in segments.values()),
        requests=requests,
        cold_bytes=cold_bytes,
        hot_bytes=plan.size - sum(p.size for p in plan.pieces if isinstance(p, ColdPiece)),
        cost=cost,
        currency=table.currency,
        prices=table.name,
    )


def _find_prices(options: SourceOptions) -> PriceTable:
    return FREE if options.address is None else default_prices(options.address.objects().name)
