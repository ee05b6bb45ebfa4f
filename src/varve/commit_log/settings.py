"""Settings of topics and of a store, with Kafka's names, defaults, ranges and meanings."""

from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import INT_MAX, LONG_MAX, check_settings, setting
from varve.records.batch_format import Codec

__all__ = ["INT_MAX", "LAST_ERASURE", "LONG_MAX", "NO_ERASURE", "LogSettings", "StoreSettings"]

FLUSH_INTERVAL = "interval"
FLUSH_ACK = "ack"
TIME_BOUNDED = "bounded"
TIME_EVENT = "event"
TIME_APPEND = "append"

_CODEC_NAMES: Final = tuple(codec.name.lower() for codec in reversed(Codec) if codec)
"""In Kafka's order."""
AS_TOTAL: Final = -2
"""Kafka's value for a local limit that equals the limit of the whole log."""
SPAN_MS_MAX: Final = 400 * 24 * 3_600_000
"""The upper bound of varve.dedup.window.ms and varve.dedup.lateness.ms."""


LAST_ERASURE: Final = "varve.erasure.last"
NO_ERASURE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings of one topic, shared by the logs of its partitions."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "What happens to old records: delete them by age and size, compact them by key, or both.",
        broker_name="log.cleanup.policy",
        choices=("compact", "delete"),
        ignore_case=True,
    )
    segment_bytes: int = setting(
        1 << 30,
        "Roll to a new segment before its data file would exceed this size; also bounds an append.",
        broker_name="log.segment.bytes",
        at_least=14,
    )
    segment_ms: int = setting(
        604_800_000,
        "Roll to a new segment when the active one holds records and is this old.",
        broker_name="log.roll.ms",
        at_least=1,
        long=True,
    )
    segment_jitter_ms: int = setting(
        0,
        "Shorten segment.ms by a random time up to this, so that segments do not all roll at once.",
        broker_name="log.roll.jitter.ms",
        at_least=0,
        long=True,
    )
    segment_index_bytes: int = setting(
        10 << 20,
        "Largest size of an offset index or time index; a full index rolls the segment.",
        broker_name="log.index.size.max.bytes",
        at_least=4,
    )
    index_interval_bytes: int = setting(
        4096,
        "Bytes of records between two entries of the offset index.",
        broker_name="log.index.interval.bytes",
        at_least=0,
    )
    retention_bytes: int = setting(
        -1,
        "Remove the oldest segments of a partition as long as it keeps this size without them; "
        "negative means no limit.",
        broker_name="log.retention.bytes",
        long=True,
    )
    retention_ms: int = setting(
        604_800_000,
        "Remove segments whose newest record is older than this; -1 means no limit.",
        broker_name="log.retention.ms",
        at_least=-1,
        long=True,
    )
    retention_time: str = setting(
        TIME_BOUNDED,
        "Which time retention.ms counts from: the record's own (event), that of its append "
        "(append), or the record's own unless it lies after the append or was already past "
        "retention.ms then, which count as the time of the append (bounded).",
        choices=(TIME_BOUNDED, TIME_EVENT, TIME_APPEND),
        is_own=True,
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "Wait between marking a file deleted and removing it, so that readers can finish.",
        broker_name="log.segment.delete.delay.ms",
        at_least=0,
        long=True,
    )
    flush: str = setting(
        FLUSH_INTERVAL,
        "When appended records reach the disk: by flush.messages and flush.ms (interval), or "
        "before each append is acknowledged (ack).",
        choices=(FLUSH_INTERVAL, FLUSH_ACK),
        is_own=True,
    )
    flush_messages: int = setting(
        LONG_MAX,
        "Sync the log to disk after this many records; the default leaves it to the system.",
        broker_name="log.flush.interval.messages",
        at_least=1,
        long=True,
    )
    flush_ms: int = setting(
        LONG_MAX,
        "Sync the log to disk when its last sync is this old; the default leaves it to the system.",
        broker_name="log.flush.interval.ms",
        at_least=0,
        long=True,
    )
    max_message_bytes: int = setting(
        1_048_588,
        "Largest record batch, with its header and after compression.",
        broker_name="message.max.bytes",
        at_least=0,
    )
    varve_batch_content_max_bytes: int = setting(
        64 << 20,
        "Largest content of a compressed batch; max.message.bytes is always allowed, up to "
        "268435456. A few kilobytes may unpack to hundreds of megabytes.",
        at_least=0,
        at_most=256 << 20,
    )
    varve_batch_records_max: int = setting(
        1_000_000,
        "Most records of a compressed batch; its size bounds those of another.",
        at_least=1,
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whether a record keeps its producer's timestamp or gets the time of its append.",
        broker_name="log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX,
        "How far a CreateTime timestamp may lie before the time of the append.",
        broker_name="log.message.timestamp.before.max.ms",
        at_least=0,
        long=True,
    )
    message_timestamp_after_max_ms: int = setting(
        LONG_MAX,
        "How far a CreateTime timestamp may lie after the time of the append. Served topics have "
        "Kafka's 3600000 unless set otherwise: `varve serve` sets it.",
        broker_name="log.message.timestamp.after.max.ms",
        at_least=0,
        long=True,
    )
    compression_type: str = setting(
        "producer",
        "The codec batches are stored with; producer keeps what the producer chose.",
        broker_name="compression.type",
        choices=("uncompressed", *_CODEC_NAMES, "producer"),
    )
    compression_gzip_level: int = setting(
        -1,
        "Level used where batches are compressed with gzip; -1 is the codec's own default.",
        broker_name="compression.gzip.level",
        at_least=1,
        at_most=9,
        also=(-1,),
    )
    compression_lz4_level: int = setting(
        9,
        "Level used where batches are compressed with lz4.",
        broker_name="compression.lz4.level",
        at_least=1,
        at_most=17,
    )
    compression_zstd_level: int = setting(
        3,
        "Level used where batches are compressed with zstd.",
        broker_name="compression.zstd.level",
        at_least=-131_072,
        at_most=22,
    )
    preallocate: bool = setting(
        False,
        "Give a new segment's data file its full size at once.",
        broker_name="log.preallocate",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "On a compacted topic, clean a partition once this share of its bytes is not yet cleaned.",
        broker_name="log.cleaner.min.cleanable.ratio",
        at_least=0,
        at_most=1,
    )
    min_stale_ratio: float = setting(
        0.1,
        "On a compacted topic, rewrite a clean segment only when this share of its bytes is "
        "superseded.",
        at_least=0,
        at_most=1,
        is_own=True,
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "On a compacted topic, how long a tombstone stays after the first cleaning that met it.",
        broker_name="log.cleaner.delete.retention.ms",
        at_least=0,
        long=True,
    )
    min_compaction_lag_ms: int = setting(
        0,
        "On a compacted topic, the minimum time before a record may be compacted; at most "
        "max.compaction.lag.ms.",
        broker_name="log.cleaner.min.compaction.lag.ms",
        at_least=0,
        long=True,
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX,
        "On a compacted topic, the maximum time before a record can be compacted: the active "
        "segment rolls by then.",
        broker_name="log.cleaner.max.compaction.lag.ms",
        at_least=1,
        long=True,
    )
    remote_storage_enable: bool = setting(
        False,
        "Copy closed segments to object storage, and read from there what has left the local disk; "
        "valid with every cleanup.policy.",
    )
    local_retention_ms: int = setting(
        -2,
        "How long a segment that was copied to object storage stays on the local disk as well; -1 "
        "means no limit, -2 the value of retention.ms.",
        broker_name="log.local.retention.ms",
        at_least=-2,
        long=True,
    )
    local_retention_bytes: int = setting(
        -2,
        "Of a partition copied to object storage, keep this much on the local disk as well; -1 "
        "means no limit, -2 the value of retention.bytes.",
        broker_name="log.local.retention.bytes",
        at_least=-2,
        long=True,
    )
    remote_log_copy_disable: bool = setting(
        False, "Copy nothing more to object storage; what is there stays and is read."
    )
    remote_log_delete_on_disable: bool = setting(
        False,
        "Let remote.storage.enable be turned off, which deletes what is only in object storage.",
    )
    varve_job_compact_interval_ms: int = setting(
        -1,
        "How often `varve job due` compacts the remote segments of the topic; -1 means never.",
        at_least=1,
        also=(-1,),
        long=True,
    )
    varve_job_verify_interval_ms: int = setting(
        -1,
        "How often `varve job due` verifies the remote segments of the topic; -1 means never.",
        at_least=1,
        also=(-1,),
        long=True,
    )
    varve_job_snapshot_interval_ms: int = setting(
        -1,
        "How often `varve job due` takes a snapshot of the topic's state; -1 means never. It goes "
        "to varve.job.snapshot.place.",
        at_least=1,
        also=(-1,),
        long=True,
    )
    varve_job_snapshot_place: str = setting(
        "", "Where snapshots of the topic go: a URL of an object store, or a path."
    )
    varve_job_snapshot_keep: int = setting(
        -1,
        "How many snapshots stay when `varve job due` has taken one; -1 means all.",
        at_least=1,
        also=(-1,),
    )
    varve_job_table_interval_ms: int = setting(
        -1,
        "How often `varve job due` brings the topic's Iceberg table up to the topic; -1 means "
        "never. It is varve.job.table.name in varve.job.table.warehouse.",
        at_least=1,
        also=(-1,),
        long=True,
    )
    varve_job_table_name: str = setting("", "The table of the topic, as NAMESPACE.NAME.")
    varve_job_table_warehouse: str = setting(
        "",
        "The place of the topic's table, a URL or a path; its catalog is a file there unless "
        "varve.job.table.catalog says otherwise.",
    )
    varve_job_table_catalog: str = setting(
        "",
        "The catalog of the topic's table: a URL, or a name that pyiceberg's configuration knows.",
    )
    varve_dedup_by: str = setting(
        "",
        "The id by which a served topic drops duplicates: key, header:NAME or field:PATH; empty "
        "turns deduplication off. Records that are written without the server are not checked.",
    )
    varve_dedup_window_ms: int = setting(
        600_000,
        "With varve.dedup.by, a record is a duplicate of an earlier one of the same id whose time "
        "is at most this far from its own, before or after.",
        at_least=1,
        at_most=SPAN_MS_MAX,
        long=True,
    )
    varve_dedup_lateness_ms: int = setting(
        -1,
        "With varve.dedup.by, a record further than this behind the newest of its partition is "
        "late, and one further than this ahead of the server's clock is from the future: both are "
        "appended without a check for duplicates. -1 is as long as varve.dedup.window.ms.",
        at_least=0,
        at_most=SPAN_MS_MAX,
        also=(-1,),
        long=True,
    )

    varve_erasure_last: str = setting(
        NO_ERASURE,
        "The last erasure of the topic. An erasure sets it, and clients cannot: shapes, and the "
        "ids of deduplications, that were derived before it are derived again.",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_jobs()
        self._check_dedup()
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidSetting(
                f"min.compaction.lag.ms is {self.min_compaction_lag_ms}, "
                f"above max.compaction.lag.ms = {self.max_compaction_lag_ms}: lower the first or "
                "raise the second"
            )
        if self.remote_storage_enable:
            self._check_local_retention()

    def _check_jobs(self) -> None:
        """A job that runs at intervals needs a target."""
        if self.varve_job_snapshot_interval_ms > 0 and not self.varve_job_snapshot_place:
            raise InvalidSetting(
                f"varve.job.snapshot.interval.ms is {self.varve_job_snapshot_interval_ms}, but "
                "varve.job.snapshot.place is empty: name the place, or set the first to -1"
            )
        has_place = self.varve_job_table_warehouse or self.varve_job_table_catalog
        if self.varve_job_table_interval_ms > 0 and not (self.varve_job_table_name and has_place):
            raise InvalidSetting(
                f"varve.job.table.interval.ms is {self.varve_job_table_interval_ms}, but which "
                "table is not set: give varve.job.table.name, and varve.job.table.warehouse or "
                "varve.job.table.catalog, or set the first to -1"
            )

    def _check_dedup(self) -> None:
        kind, _, name = self.varve_dedup_by.partition(":")
        is_valid = kind == "key" and not name and ":" not in self.varve_dedup_by
        is_valid |= kind == "header" and bool(name)
        is_valid |= kind == "field" and bool(name) and "'" not in name
        if self.varve_dedup_by and not is_valid:
            raise InvalidSetting(
                f"varve.dedup.by is {self.varve_dedup_by!r:.200}, which names no id: write key, "
                "header:NAME or field:PATH, as field:order.id, or leave it empty to accept "
                "duplicates"
            )

    def _check_local_retention(self) -> None:
        """The local retention may not exceed that of the whole log."""
        for name, local, total in (
            ("retention.ms", self.local_retention_ms, self.retention_ms),
            ("retention.bytes", self.local_retention_bytes, self.retention_bytes),
        ):
            if self.remote_log_copy_disable and local not in (AS_TOTAL, total):
                raise InvalidSetting(
                    f"local.{name} is {local} and remote.log.copy.disable is set: without copies "
                    f"{name} = {total} rules the local disk, so set local.{name} to -2"
                )
            is_limited = "delete" in self.cleanup_policy and total >= 0
            if is_limited and local != AS_TOTAL and not 0 <= local <= total:
                raise InvalidSetting(
                    f"local.{name} is {local}, more than {name} = {total}: lower the first, or "
                    "raise the second (-1 means no limit)"
                )

    @property
    def has_local_limit(self) -> bool:
        """Whether copied segments leave the local disk before they expire."""
        limits = (self.local_retention_ms, self.local_retention_bytes)
        return self.copies_to_tier and any(limit >= 0 for limit in limits)

    @property
    def local_limit_ms(self) -> int:
        """How long a copied segment stays on the local disk; -1 without a limit."""
        return self._local_limit(self.local_retention_ms, self.retention_ms)

    @property
    def local_limit_bytes(self) -> int:
        """How much of a copied log stays on the local disk; -1 without a limit."""
        return self._local_limit(self.local_retention_bytes, self.retention_bytes)

    def _local_limit(self, local: int, total: int) -> int:
        if local != AS_TOTAL:
            return local
        return max(total, -1) if "delete" in self.cleanup_policy else -1

    @property
    def max_segment_ms(self) -> int:
        """The age at which the active segment rolls."""
        if self.is_compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def copies_to_tier(self) -> bool:
        """Whether closed segments are copied to object storage."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def syncs_every_append(self) -> bool:
        return self.flush == FLUSH_ACK


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The settings of a whole store: its background work, recovery and producer state."""

    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000,
        "Time between two writes of the recovery points, from which an unclean log is checked.",
        at_least=0,
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, "Time between two writes of the log start offsets.", at_least=0
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000,
        "Time between two writes of the high watermarks.",
        at_least=1,  # Kafka states no bound; below this the worker would spin
        long=True,
    )
    num_recovery_threads_per_data_dir: int = setting(
        1,
        "Threads per log directory that load logs at the start and close them at the end.",
        at_least=1,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "Forget a producer that has written nothing for this long and has no open transaction.",
        at_least=1,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "Time between two checks for expired producers.", at_least=1
    )

    def __post_init__(self) -> None:
        check_settings(self)
