"""Appends to logs, off the loop: one thread writes, some others wait for the disk.

A log that promises the disk before the answer (`flush=ack`) is synced once for all that was written
to it meanwhile.

Invariant  what one caller submits is appended in the order of submission. Parts of a job fail by
           themselves: one that was refused does not keep the others from being appended.
Threads    `submit` is called in the loop's thread; futures are completed there. The writer takes
           whatever has come since its last round and wakes the loop once for all of it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from varve.broker.refusals import Refusals
from varve.commit_log import AppendResult, Log, TopicPartition
from varve.commit_log.producer_state import Origin
from varve.disk import Buffer
from varve.foundation.errors import Closed, StoreError, Unavailable

logger = logging.getLogger(__name__)

_SYNC_THREADS: Final = 4


@dataclass(slots=True)
class AppendPart:
    """One batch for one log; when the job is done it has a result or an error."""

    log: Log
    batch: Buffer
    origin: Origin = Origin.CLIENT
    result: AppendResult | None = None
    error: Exception | None = None


class _Job:
    __slots__ = ("call", "left", "parts")

    def __init__(self, parts: Sequence[AppendPart], call: Callable[[], None]) -> None:
        self.parts = parts
        self.call = call
        self.left = 1
        """Rounds of syncing to wait for, and the writing itself; changed in the loop's thread."""


class Appends:
    """The way into all logs of a broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        sync_pool: Executor | None = None,
        name: str = "appends",
        refusals: Refusals | None = None,
    ) -> None:
        self._loop = loop
        self.take: Callable[[AppendPart], None] = append_part
        """What is done with a part in the writer's thread: it has a result or an error then."""
        self.refusals: Final = refusals or Refusals("an append was refused", loop.time)
        self.on_appended: list[Callable[[set[TopicPartition]], None]] = []
        """Called in the loop's thread with the partitions that have more to read."""
        # None wakes the writer to its end.
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"varve-{name}", daemon=True)
        self._syncs = sync_pool or ThreadPoolExecutor(_SYNC_THREADS, "varve-sync")

    def start(self) -> None:
        self._thread.start()

    def submit(self, parts: Sequence[AppendPart]) -> "asyncio.Future[None]":
        """Done when every part has its result or its error, as durable as its topic promises."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.submit_then(parts, lambda: _complete(future))
        return future

    def submit_then(self, parts: Sequence[AppendPart], call: Callable[[], None]) -> None:
        """Like `submit`, for those who would rather be called, in the loop's thread."""
        if self._is_stopped:
            raise Closed("the broker is stopping")
        self._queue.put(_Job(parts, call))

    async def append(self, log: Log, batch: Buffer, origin: Origin = Origin.CLIENT) -> AppendResult:
        """One batch; raises what it was refused for."""
        part = AppendPart(log, batch, origin)
        await self.submit([part])
        if part.error is not None:
            raise part.error
        assert part.result is not None
        return part.result

    def stop(self) -> None:
        """Appends what was submitted, then ends; to be called off the loop."""
        self._is_stopped = True
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._syncs.shutdown(wait=True)

    # In the writer's thread

    def _run(self) -> None:
        job = self._queue.get()
        while job is not None:
            self._write([job, *self._drain()])
            job = self._queue.get()
        self.run_once()

    def run_once(self) -> bool:
        """Appends what was submitted so far; False where that is nothing."""
        jobs = self._drain()
        if jobs:
            self._write(jobs)
        return bool(jobs)

    def _drain(self) -> list[_Job]:
        """What waits, up to the sign to end, which stays."""
        jobs: list[_Job] = []
        for _ in range(self._queue.qsize()):
            job = self._queue.get()
            if job is None:
                self._queue.put(None)
                break
            jobs.append(job)
        return jobs

    def _write(self, jobs: list[_Job]) -> None:
        shown: set[TopicPartition] = set()
        unsynced: dict[Log, list[_Job]] = {}
        for job in jobs:
            for part in job.parts:
                self.take(part)
                if part.result is None:
                    if isinstance(part.error, Unavailable):
                        self.refusals.note(part.log.topic_partition, part.error)
                    continue
                if part.log.settings.syncs_every_append:
                    waiting = unsynced.setdefault(part.log, [])
                    if not waiting or waiting[-1] is not job:
                        waiting.append(job)
                        job.left += 1
                else:
                    shown.add(part.log.topic_partition)
        self._loop.call_soon_threadsafe(self._finish, jobs, shown)
        for log, waiting in unsynced.items():
            self._syncs.submit(self._sync, log, waiting)

    def _sync(self, log: Log, waiting: list[_Job]) -> None:
        error: Exception | None = None
        try:
            log.settle()
        except Exception as failure:
            error = failure
        if error is not None:
            for job in waiting:
                for part in job.parts:
                    if part.log is log and part.result is not None:
                        part.error = error
        self._loop.call_soon_threadsafe(self._finish, waiting, {log.topic_partition})

    # In the loop's thread

    def _finish(self, jobs: list[_Job], shown: set[TopicPartition]) -> None:
        for job in jobs:
            job.left -= 1
            if job.left == 0:
                job.call()
        if shown:
            for call in self.on_appended:
                call(shown)


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def append_part(part: AppendPart) -> None:
    """Appends a batch to its log as it is."""
    try:
        waits = not part.log.settings.syncs_every_append
        part.result = part.log.append(part.batch, origin=part.origin, waits=waits)
    except StoreError as error:
        part.error = error
    except Exception as error:
        logger.exception("an append failed", extra={"partition": str(part.log.topic_partition)})
        part.error = error
