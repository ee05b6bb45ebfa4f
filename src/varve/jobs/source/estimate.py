"""Where the remote tier of a server is, and what a read asks of the object store and costs.

Invariant  a server is asked where its tier is, never for credentials: they are the reader's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from varve.foundation.errors import StoreDenied, StoreError
from varve.jobs.source.options import Mode, SourceFilters, SourceOptions, parse_options
from varve.jobs.source.pieces import RemotePiece
from varve.jobs.source.plan import make_tasks, plan_read
from varve.jobs.tier.bucket import Bucket
from varve.kafka_client.client import open_client
from varve.object_store.prices import FREE, PriceTable, RequestKind, default_prices
from varve.tiering.manifest.segment import KEYS_PART

_URL: Final = "varve.tier.url"
_METADATA: Final = "varve.tier.metadata"
_MANIFESTS: Final = "object"


def learn_tier(options: SourceOptions) -> SourceOptions:
    """The options with the address of the server's cold tier, where it names one to be read.

    A server without one, or that keeps no manifests there, is asked for everything.
    """
    if options.server is None or options.is_through_server:
        return options
    client = open_client(options.server)
    cluster = options.cluster or client.topic(options.topic).cluster_id
    if options.address is not None:
        return replace(options, address=replace(options.address, cluster=cluster))
    try:
        settings = client.broker_settings(_URL, _METADATA)
    except StoreDenied as error:
        raise StoreDenied(
            f"{error}: it was asked where its cold tier is, for which one needs DescribeConfigs on "
            "the cluster; give option url, or throughServer=true"
        ) from error
    if _URL not in settings or settings.get(_METADATA, _MANIFESTS) != _MANIFESTS:
        return options
    address = Bucket(settings[_URL], options.tier_settings, cluster)
    try:
        address.objects()
    except StoreError as error:
        raise type(error)(
            f"{error}. {options.server.name} says that its cold tier is there: name it as it is "
            "called from here with option url, give its credentials, or set throughServer=true"
        ) from error
    return replace(options, address=address)


# Cost


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
        # The driver reads whole indexes; a task once more the batches of what it reads.
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
