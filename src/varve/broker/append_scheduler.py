"""Appends to logs, off the loop: one thread writes, others sync.

Appends to a log that is synced for every append (`flush=ack`) share one sync: all that were written
before it starts. A batch that takes long to check, as it unpacks to much more than its size, is
checked by others too; the next entries of its log wait for it, those of other logs do not.

Invariant  entries of a log are appended in the order of submission. Entries of one submission fail
           independently: one that is rejected does not keep the others from being appended.
Threads    `submit` is called in the loop's thread; completions are called there. The append thread
           takes all that was submitted since its last pass and wakes the loop once for all of it.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from varve.broker.data.parked_fetches import ParkedFetches
from varve.commit_log import Log, LogAppendResult, TopicPartition
from varve.commit_log.batch_validator import ValidatedBatch
from varve.commit_log.producer_state import AppendOrigin
from varve.disk import Buffer
from varve.foundation.errors import Closed, StoreError, Unavailable, without_frames

logger = logging.getLogger(__name__)


_SECONDS_BETWEEN_LOGS: Final = 10.0
_SECONDS_KEPT: Final = 60.0


class RecentFailures:
    """The last append, or read, that failed through no fault of the client."""

    def __init__(self, message: str, seconds: Callable[[], float]) -> None:
        self._message = message
        self._seconds = seconds
        self._last: tuple[float, str] | None = None
        self._logged_at: float | None = None
        self._unlogged_count = 0

    def record(self, partition: TopicPartition, error: StoreError) -> None:
        now = self._seconds()
        self._last = (now, str(error))
        if self._logged_at is not None and now - self._logged_at < _SECONDS_BETWEEN_LOGS:
            self._unlogged_count += 1
            return
        logger.error(
            self._message,
            extra={
                "partition": str(partition),
                "error": str(error),
                "unlogged_before": self._unlogged_count,
            },
        )
        self._logged_at, self._unlogged_count = now, 0

    def find_recent(self) -> str | None:
        """The error of the last minute; None where there was none."""
        last = self._last
        if last is None or self._seconds() - last[0] >= _SECONDS_KEPT:
            return None
        return last[1]


@dataclass(slots=True)
class AppendEntry:
    """One batch for one log; has a result or an error when its submission completes."""

    log: Log
    batch: Buffer
    origin: AppendOrigin = AppendOrigin.CLIENT
    result: LogAppendResult | None = None
    error: Exception | None = None
    checked: ValidatedBatch | None = None
    """The batch as it is stored, where it was checked before the append."""

    def append(self) -> LogAppendResult:
        """Appends the batch, in the append thread; raises what the log rejected it for."""
        checked, self.checked = self.checked, None
        if checked is None:
            checked = self.log.check(self.batch, origin=self.origin)
        return self._append_checked(checked)

    def append_if_quick(self) -> LogAppendResult | None:
        """As `append`; None, and nothing is appended, where `check` should come before."""
        checked = self.log.check_if_quick(self.batch, origin=self.origin)
        return None if checked is None else self._append_checked(checked)

    def check(self) -> None:
        """Checks the batch, in any thread; raises what the log rejects it for."""
        self.checked = self.log.check(self.batch, origin=self.origin)

    def _append_checked(self, checked: ValidatedBatch) -> LogAppendResult:
        waits = not self.log.settings.syncs_every_append
        return self.log.append_checked(checked, origin=self.origin, waits=waits)


class _Submission:
    __slots__ = ("complete", "entries", "pending")

    def __init__(self, entries: Sequence[AppendEntry], complete: Callable[[], None]) -> None:
        self.entries = entries
        self.complete = complete
        self.pending = 1
        """Syncs and checks that are awaited, and the append itself. The append thread adds, before
        the loop's thread may complete the submission."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """The first of the entries that wait in a log was checked."""

    log: Log


class _AppendPass:
    """What one pass of the append thread did."""

    __slots__ = ("done", "unsynced", "visible")

    def __init__(self) -> None:
        self.done: list[_Submission] = []
        """A submission is in it as often as a part of it is complete."""
        self.visible: set[TopicPartition] = set()
        self.unsynced: dict[Log, list[_Submission]] = {}

    def take(self, submission: _Submission, entry: AppendEntry) -> bool:
        """Notes an entry that was tried; whether its submission waits for one more sync."""
        if entry.result is None:
            return False
        if not entry.log.settings.syncs_every_append:
            self.visible.add(entry.log.topic_partition)
            return False
        waiting = self.unsynced.setdefault(entry.log, [])
        if waiting and waiting[-1] is submission:
            return False
        waiting.append(submission)
        return True


class AppendScheduler:
    """Appends to all logs of a broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fetches: ParkedFetches,
        failures: RecentFailures,
        sync_pool: Executor,
        *,
        check_pool: Executor | None = None,
        name: str = "appends",
    ) -> None:
        """Without a pool for checks, all batches are checked in the append thread."""
        self._loop = loop
        self._fetches = fetches
        self._failures = failures
        # None wakes the append thread to its end.
        self._queue: SimpleQueue[_Submission | _Checked | None] = SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"varve-{name}", daemon=True)
        self._sync_pool = sync_pool
        self._check_pool = check_pool
        self._waiting: dict[Log, deque[tuple[_Submission, AppendEntry]]] = {}
        """By log, the entry that is being checked and those behind it; the append thread's alone.
        """

    def start(self) -> None:
        self._thread.start()

    def submit(self, entries: Sequence[AppendEntry]) -> "asyncio.Future[None]":
        """Done when every entry has its result or error, as durable as its topic promises."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.submit_then(entries, lambda: _set_done(future))
        return future

    def submit_then(self, entries: Sequence[AppendEntry], complete: Callable[[], None]) -> None:
        """Like `submit`, without a future: `complete` is called in the loop's thread."""
        if self._is_stopped:
            raise Closed("the broker is stopping")
        self._queue.put(_Submission(entries, complete))

    def stop(self) -> None:
        """Appends what was submitted, then ends the thread; to be called off the loop.

        Entries whose log is synced for every append complete when the pool has synced it.
        """
        self._is_stopped = True
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # In the append thread

    def _run(self) -> None:
        item = self._queue.get()
        while item is not None:
            self._append([item, *self._drain()])
            item = self._queue.get()
        self.run_once()
        while self._waiting:
            item = self._queue.get()
            if item is not None:
                self._append([item])

    def run_once(self) -> bool:
        """Appends what was submitted so far; False where that is nothing."""
        items = self._drain()
        if items:
            self._append(items)
        return bool(items)

    def _drain(self) -> list[_Submission | _Checked]:
        """What is queued, up to the end sign, which stays in the queue."""
        items: list[_Submission | _Checked] = []
        for _ in range(self._queue.qsize()):
            item = self._queue.get()
            if item is None:
                self._queue.put(None)
                break
            items.append(item)
        return items

    def _append(self, items: list[_Submission | _Checked]) -> None:
        current = _AppendPass()
        for item in items:
            if isinstance(item, _Checked):
                self._append_waiting(item.log, current)
                continue
            current.done.append(item)
            for entry in item.entries:
                self._append_entry(item, entry, current)
        self._loop.call_soon_threadsafe(self._complete, current.done, current.visible)
        for log, waiting in current.unsynced.items():
            self._sync_pool.submit(self._sync, log, waiting)

    def _append_entry(
        self, submission: _Submission, entry: AppendEntry, current: "_AppendPass"
    ) -> None:
        waiting = self._waiting.get(entry.log)
        if waiting is None:
            is_done = self._try(entry, is_quick=self._check_pool is not None)
            if is_done:
                if current.take(submission, entry):
                    submission.pending += 1
                return
            waiting = self._waiting[entry.log] = deque()
            self._start_check(entry)
        waiting.append((submission, entry))
        submission.pending += 1

    def _append_waiting(self, log: Log, current: "_AppendPass") -> None:
        """Appends the entry that was checked and those behind it, up to the next long check."""
        waiting = self._waiting[log]
        is_checked = True
        while waiting:
            submission, entry = waiting[0]
            if not self._try(entry, is_quick=not is_checked):
                self._start_check(entry)
                return
            is_checked = False
            waiting.popleft()
            if not current.take(submission, entry):
                current.done.append(submission)
        del self._waiting[log]

    def _try(self, entry: AppendEntry, *, is_quick: bool) -> bool:
        """Appends an entry unless it failed; False where it should be checked before."""
        if entry.error is None:
            _run_entry(entry, entry.append_if_quick if is_quick else entry.append)
        if isinstance(entry.error, Unavailable):
            self._failures.record(entry.log.topic_partition, entry.error)
        return entry.result is not None or entry.error is not None

    def _start_check(self, entry: AppendEntry) -> None:
        assert self._check_pool is not None
        self._check_pool.submit(self._check, entry)

    def _check(self, entry: AppendEntry) -> None:
        _run_entry(entry, entry.check)
        self._queue.put(_Checked(entry.log))

    def _sync(self, log: Log, waiting: list[_Submission]) -> None:
        error: Exception | None = None
        try:
            log.sync_appends()
        except Exception as failure:
            error = failure
        if error is not None:
            for submission in waiting:
                for entry in submission.entries:
                    if entry.log is log and entry.result is not None:
                        entry.error = error
        self._loop.call_soon_threadsafe(self._complete, waiting, {log.topic_partition})

    # In the loop's thread

    def _complete(self, submissions: list[_Submission], visible: set[TopicPartition]) -> None:
        for submission in submissions:
            submission.pending -= 1
            if submission.pending == 0:
                submission.complete()
        if visible:
            self._fetches.partitions_appended(visible)


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _run_entry(entry: AppendEntry, work: Callable[[], LogAppendResult | None]) -> None:
    """Sets the result or the error of an entry."""
    try:
        entry.result = work()
    except StoreError as error:
        entry.error = without_frames(error)
    except Exception as error:
        logger.exception("append failed", extra={"partition": str(entry.log.topic_partition)})
        entry.error = without_frames(error)
