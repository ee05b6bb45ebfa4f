"""The cold tier of a store, opened when a topic first needs it.

Invariant  a store without tiered topics never asks an object store for anything, nor waits for what
           the tier imports; one whose object store is down opens and serves what is local.
Threads    any; `_lock` guards the opening.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.key_index.key_index import KeyEntry
from varve.cleaning.remote_tier import RemoteBounds
from varve.commit_log import (
    Log,
    RemoteLogReader,
    RemoteRead,
    TimestampOffset,
    TopicPartition,
)
from varve.embedded.tier_opening import TierOpening
from varve.foundation.errors import (
    Closed,
    InvalidRequest,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    Unavailable,
)
from varve.foundation.worker import Worker, WorkerHealth

if TYPE_CHECKING:
    from varve.object_store import MirroredObjectStore
    from varve.tiering.manifest.store import ManifestStore
    from varve.tiering.metadata.topic import TopicMaker
    from varve.tiering.metrics import TierMetrics
    from varve.tiering.tier import Tier

logger = logging.getLogger(__name__)

STOP_TIMEOUT_MS: Final = 5_000
"""How long a thread may be busy with the object store when that is to be closed."""
CATCH_UP_MS: Final = 10_000
"""How long a round of copies continues with what the mirror lacks."""
MENDABLE: Final = (Unavailable, StoreDenied)
"""What an object store says that is down or refuses us; the log continues without it meanwhile."""
RETRY_MS: Final = 1_000
"""How long a store that could not be opened is not asked again."""


class TierRemoteReader:
    """The remote part of one log, in a tier that is opened by the first read of it."""

    def __init__(self, tier: "StoreTier", partition: TopicPartition) -> None:
        self._tier = tier
        self._partition = partition

    def read(
        self,
        *,
        start_offset: int,
        limit_offset: int,
        max_bytes: int,
        min_one: bool,
        with_aborted: bool,
    ) -> RemoteRead | None:
        return self._tier.get_remote_reader(self._partition).read(
            start_offset=start_offset,
            limit_offset=limit_offset,
            max_bytes=max_bytes,
            min_one=min_one,
            with_aborted=with_aborted,
        )

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        return self._tier.get_remote_reader(self._partition).find_offset_by_time(
            timestamp, start_offset=start_offset, end_offset=end_offset
        )


class StoreTier:
    """The tier of one store, or the promise of one."""

    def __init__(self, opening: TierOpening) -> None:
        self._logs = opening.logs
        self._clock = opening.clock
        self._opening = opening
        self._settings = opening.settings.tier
        self.cleaner: LogCleaner | None = None
        """Of the same store; set before the first use, as the cleaner needs the tier as well."""
        self._lock = threading.Lock()
        self._tier: Tier | None = None  # guarded by _lock
        self._failure: StoreError | None = None  # guarded by _lock
        self._retry_ms = 0  # guarded by _lock
        self._is_maintained = False  # guarded by _lock
        self._is_closed = False  # guarded by _lock
        self._workers: list[Worker] = []  # guarded by _lock

    @property
    def is_wanted(self) -> bool:
        """Whether a topic is in the cold tier."""
        return any(log.settings.remote_storage_enable for _, log, _ in self._logs.logs())

    @property
    def delete_delay_ms(self) -> int:
        """How long the objects of a segment stay when it has expired."""
        return self._settings.replaced_ms

    def get(self) -> "Tier":
        """The tier; raises what keeps its object store from being opened."""
        with self._lock:
            if self._is_closed:
                raise Closed("the cold tier was closed with its store; open the store again")
            if self._tier is None:
                self._tier = self._open_locked()
            return self._tier

    def find(self) -> "Tier | None":
        """The tier if a topic is in it."""
        return self.get() if self.is_wanted else None

    def _open_locked(self) -> "Tier":
        if self._failure is not None and self._clock.now_ms() < self._retry_ms:
            raise self._failure.again()
        try:
            assert self.cleaner is not None
            return self._opening.open(self.cleaner)
        except MENDABLE as error:
            self._failure, self._retry_ms = error, self._clock.now_ms() + RETRY_MS
            raise

    def remote_reader(self, partition: TopicPartition) -> "TierRemoteReader":
        """Reads the part of a log that is not on the local disk; opens the tier when first used."""
        return TierRemoteReader(self, partition)

    def get_remote_reader(self, partition: TopicPartition) -> RemoteLogReader:
        """The reader of the open tier; raises what keeps its object store from being opened."""
        try:
            return self.get().remote_log(partition)
        except (StoreUnavailable, StoreDenied) as error:
            raise type(error)(
                f"{partition}: what lies before its local start is in the cold tier, which cannot "
                f"be asked now: {error}. What is on the local disk is still served"
            ) from error

    def bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        """See `varve.cleaning.remote_tier`."""
        if not self._logs.get(partition).settings.remote_storage_enable:
            return None
        return self.get().partitions.bounds(partition)

    def find_key(
        self,
        partition: TopicPartition,
        hash: tuple[int, int],
        *,
        topic_id: bytes,
        start_offset: int,
        end_offset: int,
    ) -> KeyEntry | None:
        """See `varve.cleaning.remote_tier`."""
        remote = self.get().remote_log(partition)
        return remote.find_key(
            hash, topic_id=topic_id, start_offset=start_offset, end_offset=end_offset
        )

    def start(self) -> None:
        """Lets threads copy and expire from now on."""
        with self._lock:
            self._is_maintained = True
        self.look_after()

    def look_after(self) -> None:
        """Starts the threads once a topic is in the tier; they begin at once."""
        if not self.is_wanted:
            return
        with self._lock:
            if not self._is_maintained or self._workers:
                return
            interval_ms = self._settings.remote_log_manager_task_interval_ms
            self._workers = [
                Worker("varve-tier-copy", self._copy_once, interval_ms, self._clock),
                Worker("varve-tier-expiry", self._expire_once, interval_ms, self._clock),
            ]
            for worker in self._workers:
                worker.start()
                worker.wake()

    def _find_for_round(self) -> "Tier | None":
        """The tier if there is something to do: nobody may be in it, or the end has come first."""
        try:
            return self.find()
        except Closed:
            return None

    def _copy_once(self, now_ms: int) -> None:
        tier = self._find_for_round()
        if tier is not None:
            tier.copy_once(now_ms)
            mirror = _find_mirror(tier)
            if mirror is not None:
                mirror.catch_up(within_ms=CATCH_UP_MS)

    def _expire_once(self, now_ms: int) -> None:
        tier = self._find_for_round()
        if tier is not None:
            tier.expire_once(now_ms)

    def run_once(self, now_ms: int) -> None:
        """One round of copying, then one of expiry, in the caller's thread.

        An object store that is down or refuses us keeps nobody else from their work.
        """
        try:
            self._copy_once(now_ms)
            self._expire_once(now_ms)
        except StoreError as error:
            logger.warning("the cold tier cannot be opened", extra={"error": str(error)})

    def prepare(self, maker: "TopicMaker", topic: str = "") -> None:
        """Before a topic enters the tier, under the lock of who makes topics.

        Raises InvalidSetting or InvalidRequest where the tier can never be opened as it is; one
        that is down, or refuses us, may come up again.
        """
        from varve.tiering.manifest.paths import check_topic_fits

        check_topic_fits(topic)
        self._opening.prepare(maker)
        with _outage_logged():
            self.get()

    def check_removable(self, partition: TopicPartition) -> None:
        """Raises StoreError where the object store cannot, or will not, let a partition go."""
        self.get().check_removable(partition)

    def remove(self, partition: TopicPartition) -> None:
        """Takes a partition's objects out of the tier: its topic goes."""
        self.get().remove(partition, self._clock.now_ms())

    def enter(self, logs: Sequence[Log]) -> None:
        """Lets logs into the tier, once `prepare` was called.

        Raises InvalidRequest when the tier has segments that are not of one's history from where
        it starts: those before that would be taken for expired ones. One that is down is not asked.
        """
        try:
            tier = self.get()
            for log in logs:
                _check_same_history(log, tier.partitions.get(log.topic_partition).manifests)
        except Unavailable as error:
            logger.warning("the cold tier cannot be asked", extra={"error": str(error)})
        self.stay(logs)

    def leave(self, logs: Sequence[Log]) -> None:
        """Takes partitions out of the tier: from now on their logs are what is local.

        Nothing has changed when the object store cannot be asked at all. Copies begin again only
        when they `stay` or `enter`.
        """
        tier = self.get()
        for log in logs:
            tier.partitions.get(log.topic_partition).manifests.load()
        try:
            for log in logs:
                tier.partitions.begin_leaving(log)
                log.raise_log_start(max(log.log_start_offset, log.local_start_offset))
                tier.remove(log.topic_partition, self._clock.now_ms())
        except BaseException:
            self.stay(logs)
            raise

    def stay(self, logs: Sequence[Log]) -> None:
        """For logs that are in the tier after all."""
        with self._lock:
            tier = self._tier
        if tier is not None:
            for log in logs:
                tier.partitions.end_leaving(log)

    def failures(self) -> dict[TopicPartition, str]:
        """What went wrong in the last round, by partition that is in the tier."""
        with self._lock:
            tier, failure = self._tier, self._failure
        tiered = {
            partition
            for partition, log, _ in self._logs.logs()
            if log.settings.remote_storage_enable
        }
        if tier is None:
            return {} if failure is None else dict.fromkeys(sorted(tiered), str(failure))
        failures = {**tier.failures, **tier.copier.failures()}
        return {partition: text for partition, text in failures.items() if partition in tiered}

    def mirror_trouble(self) -> str:
        """What is wrong with the stores of a mirror; empty if nothing is, or nothing mirrors."""
        with self._lock:
            mirror = None if self._tier is None else _find_mirror(self._tier)
        return "" if mirror is None else mirror.trouble()

    def metrics(self) -> "TierMetrics | None":
        """The figures of the tier; None while it is not open."""
        with self._lock:
            return None if self._tier is None else self._tier.metrics

    def measure(self, now_ms: int) -> None:
        """Brings the figures up to now where a topic is in the tier; a store may be down."""
        tier = None
        with _outage_logged():
            tier = self.find()
        if tier is not None:
            tier.measure(now_ms)

    def worker_health(self) -> list[WorkerHealth]:
        with self._lock:
            return [worker.health() for worker in self._workers]

    def stop(self) -> None:
        """Ends the threads after the chunk they are at, and closes the object store for good.

        One who waits for a store that does not answer gives up when that is closed.
        """
        with self._lock:
            self._is_closed, self._is_maintained = True, False
            workers, tier = self._workers, self._tier
            self._workers, self._tier = [], None
        with ExitStack() as stack:
            for worker in workers:
                stack.callback(worker.stop)
            if tier is not None:
                stack.callback(self._close, tier)
                stack.callback(tier.close)
                tier.stop()
            for worker in workers:
                with suppress(Unavailable):
                    worker.stop(STOP_TIMEOUT_MS)

    def _close(self, tier: "Tier") -> None:
        if self._opening.owns_objects:
            tier.objects.close()


@contextmanager
def _outage_logged() -> Iterator[None]:
    """Continues without an object store that is down or refuses us."""
    try:
        yield
    except MENDABLE as error:
        logger.warning("the cold tier cannot be opened", extra={"error": str(error)})


def _check_same_history(log: Log, manifests: "ManifestStore") -> None:
    from varve.tiering.copy.history_check import is_same_history

    manifest = manifests.load()
    if manifest.readable_count and not is_same_history(manifests, manifest, log):
        raise InvalidRequest(
            f"{log.topic_partition}: the cold tier has {manifest.readable_count} segments of it up "
            f"to offset {manifest.highest_offset}, and not all of them are of this log, which "
            f"holds {log.log_start_offset} to {log.end_offset}: `varve tier restore` into another "
            "directory brings back a whole log that goes on with them. Only if they are not wanted "
            f"any more, remove what is below {manifest.path.prefix}"
        )


def _find_mirror(tier: "Tier") -> "MirroredObjectStore | None":
    from varve.object_store import MirroredObjectStore

    return tier.objects if isinstance(tier.objects, MirroredObjectStore) else None
