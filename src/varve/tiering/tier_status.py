"""The status of a partition in both tiers: bytes, segments, copy lag, offsets.

Invariant  read-only. The local side needs no request to the object store.
"""

from dataclasses import dataclass, replace

from varve.cleaning.retention.segments import read_consistently
from varve.commit_log import Log, TopicPartition
from varve.tiering.partition import TieredPartition, find_closed


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """The status of one partition in both tiers.

    `lag_*` count closed segments that are not copied. `pending_*` count unreadable segments in the
    store: announced ones, and those being deleted. `oldest_*` is when the oldest record of a tier
    was appended, None without any. Fields that need a request to the store are None without one.
    """

    partition: TopicPartition
    is_enabled: bool
    is_copying: bool
    log_start_offset: int
    local_start_offset: int
    end_offset: int
    local_bytes: int
    local_segments: int
    oldest_local_ms: int | None
    copied_offset: int | None = None
    remote_bytes: int | None = None
    remote_segments: int | None = None
    oldest_remote_ms: int | None = None
    stored_bytes: int | None = None
    pending_segments: int | None = None
    lag_bytes: int | None = None
    lag_segments: int | None = None
    manifest_version: int | None = None


def observe_local(log: Log) -> TierStatus:
    """The status of the local tier only, as for a topic that is not tiered."""
    return read_consistently(log, lambda: _observe_local(log))


def _observe_local(log: Log) -> TierStatus:
    segments = list(log.view)
    first = next((segment for segment in segments if segment.size), None)
    return TierStatus(
        partition=log.topic_partition,
        is_enabled=log.settings.remote_storage_enable,
        is_copying=log.settings.copies_to_tier,
        log_start_offset=log.log_start_offset,
        local_start_offset=max(log.log_start_offset, log.local_start_offset),
        end_offset=log.end_offset,
        local_bytes=log.size,
        local_segments=len(segments),
        oldest_local_ms=None if first is None else log.appended_ms(first)[0],
    )


def observe_tiers(tiered: TieredPartition) -> TierStatus:
    """The status of both tiers by the newest manifest; raises Unavailable."""
    manifest = tiered.load()
    log, copied_offset = tiered.log, tiered.next_copy_offset
    uncopied = find_closed(log, copied_offset)
    oldest = next(tiered.manifests.readable(manifest, from_offset=log.log_start_offset), None)
    return replace(
        observe_local(log),
        copied_offset=copied_offset,
        remote_bytes=manifest.log_bytes,
        remote_segments=manifest.readable_count,
        oldest_remote_ms=None if oldest is None else oldest.append_ms[0],
        stored_bytes=manifest.stored_bytes,
        pending_segments=manifest.segment_count - manifest.readable_count,
        lag_bytes=sum(segment.size for segment, _ in uncopied),
        lag_segments=len(uncopied),
        manifest_version=manifest.version,
    )
