"""Plans a batch read of a topic: its pieces and tasks, and its requests and cost.

A latest-per-key read is planned from key indexes where that saves reading (`latest_plan`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from varve.foundation.clock import SystemClock
from varve.foundation.errors import StoreDenied
from varve.jobs.key_plans import (
    INLINE_BYTES,
    plan_area,
    read_plan_area,
    remove_old_read_plans,
)
from varve.jobs.source.latest_plan import (
    IndexedPiece,
    LatestRequest,
    Planned,
    is_indexed,
    plan_latest,
    read_headers,
    scan_keys,
)
from varve.jobs.source.options import (
    Mode,
    SourceFilters,
    SourceOptions,
    learn_tier,
    parse_options,
)
from varve.jobs.source.piece_reading import open_objects
from varve.jobs.source.pieces import Piece, PlannedPiece, RemotePiece, pack
from varve.jobs.source.read import TaskRead
from varve.jobs.source.topic_source import open_partitions
from varve.jobs.tasks import ThreadRunner
from varve.object_store.metering import FREE, PriceTable, RequestKind, default_prices
from varve.tiering.manifest.segment import KEYS_PART

LOOSE_BYTES_MAX: Final = 256 << 20
"""Data without a key index that the driver scans for keys while it plans a latest-per-key read.

A partition with more, such as one that is not in the remote tier, is read whole by one task."""
KEYS_PER_TASK: Final = 32 << 20
"""Keys that one task holds, in 1 to 2 GiB of memory; with more keys, several tasks each read
the whole partition for a share of the hashes."""

PLANNED_BITS_MAX: Final = 256 << 20
"""Bytes of bits of the hash ranges that are planned at once, each with two bits per record."""
_PLAN_THREADS: Final = 8
_RECORD_BYTES: Final = 64
"""Assumed bytes per record, to estimate the keys of data outside the remote tier."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The pieces to read, by partition and offset, and the requests that planning took."""

    topic: str
    topic_id: str
    pieces: tuple[Piece, ...]
    requests: int

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


def plan_read(options: SourceOptions, filters: SourceFilters) -> SourcePlan:
    """The pieces of a batch read."""
    pieces: list[Piece] = []
    requests, name, topic_id = 0, options.topic, ""
    for source in open_partitions(options, filters.partitions):
        start, end = source.find_range(filters)
        pieces += source.pieces(start_offset=start, end_offset=end, filters=filters)
        requests += source.requests
        name, topic_id = source.topic, source.topic_id
    return SourcePlan(name, topic_id, tuple(pieces), requests)


def plan_tasks(options: SourceOptions, filters: SourceFilters) -> list[TaskRead]:
    """The tasks of a batch read."""
    plan = plan_read(options, filters)
    if options.mode is Mode.LATEST and options.is_committed and filters.keys is None:
        return _plan_latest(plan, options)
    return make_tasks(plan, options)


def _plan_latest(plan: SourcePlan, options: SourceOptions) -> list[TaskRead]:
    """Plans partitions with large indexed data; tasks read the other partitions whole."""
    unplanned: list[Piece] = []
    requests: list[LatestRequest] = []
    loose_bytes_remaining = LOOSE_BYTES_MAX
    for _, group in groupby(plan.pieces, key=lambda piece: piece.partition):
        pieces = list(group)
        loose_bytes = sum(piece.size for piece in pieces if not is_indexed(piece))
        size = sum(piece.size for piece in pieces)
        if (
            loose_bytes == size
            or loose_bytes > loose_bytes_remaining
            or size <= options.split_bytes
        ):
            unplanned += pieces
            continue
        loose_bytes_remaining -= loose_bytes
        requests.append(_make_request(plan, options, pieces))
    planned = _plan_requests(requests, options)
    runs = pack(planned, split_bytes=options.split_bytes)
    tasks = make_tasks(replace(plan, pieces=tuple(unplanned)), options)
    return [*tasks, *(TaskRead(plan.topic, plan.topic_id, run) for run in runs)]


def _make_request(
    plan: SourcePlan, options: SourceOptions, pieces: Sequence[Piece]
) -> LatestRequest:
    headers = read_headers(options.address, plan.topic_id, pieces)
    planned: list[Planned] = []
    for piece in pieces:
        if isinstance(piece, RemotePiece) and is_indexed(piece):
            planned.append(headers[piece.segment.id])
        else:
            planned.append(scan_keys(piece, plan.topic_id, lambda: open_objects(options.address)))
    return LatestRequest(options.address, tuple(planned))


def _plan_requests(requests: Sequence[LatestRequest], options: SourceOptions) -> list[PlannedPiece]:
    """Plans all requests; the bits of a large plan are written to an object store."""
    inline_bytes = INLINE_BYTES // max(len(requests), 1)
    assigned = [_assign_area(request, options, inline_bytes) for request in requests]
    bits = max((sum(request.record_counts) // 4 for request in requests), default=0)
    try:
        planned = plan_latest(
            assigned,
            runner=ThreadRunner(min(_PLAN_THREADS, PLANNED_BITS_MAX // max(bits, 1)) or 1),
            split_bytes=options.split_bytes,
            with_tombstones=False,
        )
    except StoreDenied as error:
        raise StoreDenied(
            f"{error}. The plan of a latest-per-key read of many records is written to the "
            "bucket, in the folders `work` of the partitions: allow the read to write there, or "
            "name another store with option planUrl"
        ) from error
    return [piece for pieces in planned for piece in pieces]


def _assign_area(
    request: LatestRequest, options: SourceOptions, inline_bytes: int
) -> LatestRequest:
    store = options.plan_address or options.address
    remote_paths = [
        keys.piece.remote_path for keys in request.pieces if isinstance(keys, IndexedPiece)
    ]
    assert store is not None, "a plan has key indexes in an object store"
    folder = remote_paths[0].work_folder
    area = plan_area(
        read_plan_area(store.objects, folder),
        record_count=sum(request.record_counts),
        inline_bytes=inline_bytes,
    )
    if area is not None:
        remove_old_read_plans(store.objects(), folder, now_ms=SystemClock().now_ms())
    return replace(request, area=area)


def make_tasks(plan: SourcePlan, options: SourceOptions) -> list[TaskRead]:
    """Tasks of about `split_bytes`; for the latest state, a partition or a share of its keys."""
    if options.mode is Mode.HISTORY:
        runs = pack(plan.pieces, split_bytes=options.split_bytes)
        return [TaskRead(plan.topic, plan.topic_id, run) for run in runs]
    tasks: list[TaskRead] = []
    for _, group in groupby(plan.pieces, key=lambda piece: piece.partition):
        run = tuple(group)
        parts = -(-_count_keys(run) // KEYS_PER_TASK) or 1
        tasks += [TaskRead(plan.topic, plan.topic_id, run, part, parts) for part in range(parts)]
    return tasks


def _count_keys(pieces: Sequence[Piece]) -> int:
    """An estimate of the number of keys, from manifests and the size of other data."""
    segments = {
        piece.segment.id: piece.segment for piece in pieces if isinstance(piece, RemotePiece)
    }
    counts = [
        segment.record_count if segment.key_count is None else segment.key_count
        for segment in segments.values()
    ]
    hot_bytes = sum(piece.size for piece in pieces if not isinstance(piece, RemotePiece))
    return sum(counts) + hot_bytes // _RECORD_BYTES


# Cost


_KEY_LOOKUP_REQUESTS = 2
_KEY_PLAN_REQUESTS = 6
"""Per segment whose key index is planned from: its header, entries and batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEstimate:
    """An upper bound of what a read costs, without retries.

    `records` counts all records of the segments that are read. With a filter on keys, most segments
    with a key index cost only `_KEY_LOOKUP_REQUESTS`.
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
    """Plans a read without reading data; planning itself takes a few requests."""
    chosen = learn_tier(options if isinstance(options, SourceOptions) else parse_options(options))
    plan = plan_read(chosen, filters)
    tasks = make_tasks(plan, chosen)
    remote = [
        remote_piece
        for task in tasks
        for remote_piece in task.pieces
        if isinstance(remote_piece, RemotePiece)
    ]
    segments = {
        (remote_piece.partition, remote_piece.segment.id): remote_piece.segment
        for remote_piece in remote
    }
    requests = plan.requests + sum(piece.requests for piece in remote)
    if filters.keys is not None:
        indexed = sum(
            remote_segment.find_part(KEYS_PART) is not None for remote_segment in segments.values()
        )
        requests += _KEY_LOOKUP_REQUESTS * indexed
    cold_bytes = sum(piece.size for piece in remote)
    if chosen.mode is Mode.LATEST and chosen.is_committed and filters.keys is None:
        # The driver reads whole key indexes; tasks read their batch tables again.
        keys = [remote_segment.find_part(KEYS_PART) for remote_segment in segments.values()]
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
        hot_bytes=plan.size - sum(p.size for p in plan.pieces if isinstance(p, RemotePiece)),
        cost=cost,
        currency=table.currency,
        prices=table.name,
    )


def _find_prices(options: SourceOptions) -> PriceTable:
    return FREE if options.address is None else default_prices(options.address.objects().name)
