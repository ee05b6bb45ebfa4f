"""The remote tier of a store, opened when a topic first needs it.

Invariant  a store without tiered topics sends no request to an object store and does not import the
           tier; a store whose object store is down opens and serves its local segments.
Threads    any; `_lock` is held while the tier is opened.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.key_index.key_index import KeyEntry
from varve.cleaning.remote_tier import KeySearch, RemoteBounds
from varve.commit_log import (
    Log,
    RemoteLogReader,
    RemoteRead,
    RemoteReadRequest,
    TimestampOffset,
    TopicPartition,
)
from varve.embedded.tier_opening import TierOpening
from varve.foundation.clock import RemovalClock
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
"""How long a stop waits for a thread that is in a request to the object store."""
CATCH_UP_MS: Final = 10_000
"""How long a round of copies spends on bringing the mirror up to date."""
_RECOVERABLE_ERRORS: Final = (Unavailable, StoreDenied)
"""Errors of an object store that is down or denies access; the log works without it meanwhile."""
RETRY_MS: Final = 1_000
"""Time until an object store that could not be opened is tried again."""


class TierRemoteReader:
    """Reads the remote segments of one log; the first read opens the tier."""

    def __init__(self, tier: "StoreTier", partition: TopicPartition) -> None:
        self._tier = tier
        self._partition = partition

    def read(self, request: RemoteReadRequest) -> RemoteRead | None:
        return self._tier.get_remote_reader(self._partition).read(request)

    def find_offset_by_time(
        self, timestamp: int, *, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        return self._tier.get_remote_reader(self._partition).find_offset_by_time(
            timestamp, start_offset=start_offset, end_offset=end_offset
        )


class StoreTier:
    """The remote tier of one store, opened on first use."""

    def __init__(self, opening: TierOpening, removal_clock: RemovalClock) -> None:
        self._logs = opening.logs
        self._removal_clock = removal_clock
        self._clock = opening.clock
        self._opening = opening
        self._settings = opening.settings.tier
        self.cleaner: LogCleaner | None = None
        """The cleaner of the store; set after construction, because it needs the tier as well."""
        self._lock = threading.Lock()
        self._tier: Tier | None = None  # guarded by _lock
        self._failure: StoreError | None = None  # guarded by _lock
        self._retry_ms = 0  # guarded by _lock
        self._is_maintained = False  # guarded by _lock
        self._is_closed = False  # guarded by _lock
        self._workers: list[Worker] = []  # guarded by _lock

    @property
    def is_tiered(self) -> bool:
        """Whether a topic is tiered."""
        return any(log.settings.remote_storage_enable for _, log, _ in self._logs.logs())

    @property
    def delete_delay_ms(self) -> int:
        """How long the objects of an expired segment stay."""
        return self._settings.replaced_retention_ms

    def get(self) -> "Tier":
        """The tier, opened if necessary; raises StoreError when that fails."""
        with self._lock:
            if self._is_closed:
                raise Closed("the tier was closed with its store; open the store again")
            if self._tier is None:
                self._tier = self._open_locked()
            return self._tier

    def find(self) -> "Tier | None":
        """The tier; None when no topic is tiered."""
        return self.get() if self.is_tiered else None

    def _open_locked(self) -> "Tier":
        if self._failure is not None and self._clock.now_ms() < self._retry_ms:
            raise self._failure.again()
        try:
            assert self.cleaner is not None
            return self._opening.open(self.cleaner)
        except _RECOVERABLE_ERRORS as error:
            self._failure, self._retry_ms = error, self._clock.now_ms() + RETRY_MS
            raise

    def remote_reader(self, partition: TopicPartition) -> "TierRemoteReader":
        """A reader for the remote segments of a partition; its first read opens the tier."""
        return TierRemoteReader(self, partition)

    def get_remote_reader(self, partition: TopicPartition) -> RemoteLogReader:
        """The reader of the open tier; raises StoreError when its object store cannot be opened."""
        try:
            return self.get().remote_log(partition)
        except (StoreUnavailable, StoreDenied) as error:
            raise type(error)(
                f"{partition}: records before its local log start are in the remote tier, which "
                f"is not available now: {error}. What is on the local disk is still served"
            ) from error

    def bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        """See `varve.cleaning.remote_tier`."""
        if not self._logs.get(partition).settings.remote_storage_enable:
            return None
        return self.get().partitions.bounds(partition)

    def find_key(self, partition: TopicPartition, search: KeySearch) -> KeyEntry | None:
        """See `varve.cleaning.remote_tier`."""
        return self.get().remote_log(partition).find_key(search)

    def start(self) -> None:
        """Allows background copies and expiry; their threads start once a topic is tiered."""
        with self._lock:
            self._is_maintained = True
        self.start_when_tiered()

    def start_when_tiered(self) -> None:
        """Starts the threads if a topic is tiered; their first round begins immediately."""
        if not self.is_tiered:
            return
        with self._lock:
            if not self._is_maintained or self._workers:
                return
            interval_ms = self._settings.remote_log_manager_task_interval_ms
            self._workers = [
                Worker("varve-tier-copy", self._copy_once, interval_ms, self._removal_clock),
                Worker("varve-tier-expiry", self._expire_once, interval_ms, self._removal_clock),
            ]
            for worker in self._workers:
                worker.start()
                worker.wake()

    def _find_for_round(self) -> "Tier | None":
        """The tier for a background round; None when no topic is tiered or the store is closed."""
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

        A failing object store is logged and does not stop the other background work.
        """
        try:
            self._copy_once(now_ms)
            self._expire_once(now_ms)
        except StoreError as error:
            logger.warning("the remote tier failed: %(error)s", {"error": str(error)})

    def prepare(self, maker: "TopicMaker", topic: str = "") -> None:
        """Checks and opens the tier before a topic becomes tiered; `_changes` is held.

        Raises InvalidSetting or InvalidRequest when its configuration is wrong. An object store
        that is down or denies access is only logged.
        """
        from varve.tiering.manifest.paths import check_topic_fits

        check_topic_fits(topic)
        self._opening.prepare(maker)
        with _outage_logged():
            self.get()

    def check_removable(self, partition: TopicPartition) -> None:
        """Raises StoreError when the object store cannot delete the objects of a partition."""
        self.get().check_removable(partition)

    def remove(self, partition: TopicPartition) -> None:
        """Deletes the objects of a partition whose topic is deleted."""
        self.get().remove(partition, self._clock.now_ms())

    def enter(self, logs: Sequence[Log]) -> None:
        """Makes logs tiered, after `prepare`.

        Raises InvalidRequest when the tier has segments of another history, or before the log
        start offset, where they would count as expired. Not checked while the store is down.
        """
        try:
            tier = self.get()
            for log in logs:
                _check_same_history(log, tier.partitions.get(log.topic_partition).manifests)
        except Unavailable as error:
            logger.warning(
                "the history of the remote tier was not checked: %(error)s", {"error": str(error)}
            )
        self.stay(logs)

    def leave(self, logs: Sequence[Log]) -> None:
        """Takes partitions out of the tier: only their local segments remain.

        When the object store does not answer, nothing has changed. Copies resume only after `stay`
        or `enter`.
        """
        tier = self.get()
        for log in logs:
            tier.partitions.get(log.topic_partition).manifests.load()
        try:
            for log in logs:
                tiered = tier.partitions.get(log.topic_partition)
                tier.partitions.begin_leaving(log)
                # An eviction in progress drops local records that the objects still hold.
                with tiered.work:
                    log.raise_log_start(max(log.log_start_offset, log.local_start_offset))
                tier.remove(log.topic_partition, self._clock.now_ms())
        except BaseException:
            self.stay(logs)
            raise

    def stay(self, logs: Sequence[Log]) -> None:
        """Reverts `leave`: the logs stay tiered."""
        with self._lock:
            tier = self._tier
        if tier is not None:
            for log in logs:
                tier.partitions.end_leaving(log)

    def failures(self) -> dict[TopicPartition, str]:
        """The error of the last round, by tiered partition."""
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
        """Describes a problem of the mirror; empty without a problem or a mirror."""
        with self._lock:
            mirror = None if self._tier is None else _find_mirror(self._tier)
        return "" if mirror is None else mirror.trouble()

    def metrics(self) -> "TierMetrics | None":
        """The metrics of the tier; None while it is not open."""
        with self._lock:
            return None if self._tier is None else self._tier.metrics

    def measure(self, now_ms: int) -> None:
        """Updates the metrics of tiered partitions; a store that is down is logged."""
        tier = None
        with _outage_logged():
            tier = self.find()
        if tier is not None:
            tier.measure(now_ms)

    def worker_health(self) -> list[WorkerHealth]:
        with self._lock:
            return [worker.health() for worker in self._workers]

    def stop(self) -> None:
        """Stops the threads at their next chunk, and closes the object store.

        Closing it also ends the wait of a thread for a store that does not answer.
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
    """Logs that the object store is down or denies access, and continues."""
    try:
        yield
    except _RECOVERABLE_ERRORS as error:
        logger.warning("the remote tier cannot be opened: %(error)s", {"error": str(error)})


def _check_same_history(log: Log, manifests: "ManifestStore") -> None:
    from varve.tiering.history_check import is_same_history

    manifest = manifests.load()
    if manifest.readable_count and not is_same_history(manifests, manifest, log):
        raise InvalidRequest(
            f"{log.topic_partition}: the tier has {manifest.readable_count} segments of it up "
            f"to offset {manifest.highest_offset}, and not all of them are of this log, which "
            f"holds {log.log_start_offset} to {log.end_offset}: `varve tier restore` into another "
            "directory brings back a whole log that goes on with them. Only if they are not wanted "
            f"any more, remove what is below {manifest.path.prefix}"
        )


def _find_mirror(tier: "Tier") -> "MirroredObjectStore | None":
    from varve.object_store import MirroredObjectStore

    return tier.objects if isinstance(tier.objects, MirroredObjectStore) else None
