"""Bounds the concurrent and the waiting reads from object storage.

Reads that a caller waits for have priority over read-ahead, which takes at most half of the queue.

Invariant  never more than `threads` reads at a time, those in the threads of callers included, and
           never more than `max_pending` that wait.
Threads    any thread may call; the pool's own start when they are first needed and end by `close`.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from varve.foundation.errors import Closed, Unavailable

T = TypeVar("T")

_CLOSE_DEADLINE_SECONDS: Final = 10.0

_Task = tuple[Future[Any], Callable[[], Any]]


class ReadPool:
    """Runs reads within the bounds of `remote.log.reader.threads` and `.max.pending.tasks`."""

    def __init__(self, *, threads: int, max_pending: int) -> None:
        self._threads_max = threads
        self._pending_max = max_pending
        self._changed = threading.Condition()
        self._required: deque[_Task] = deque()  # guarded by _changed
        self._ahead: deque[_Task] = deque()  # guarded by _changed
        self._active = 0  # guarded by _changed
        self._idle = 0  # guarded by _changed
        self._threads: list[threading.Thread] = []  # guarded by _changed
        self._is_closed = False  # guarded by _changed

    def run(self, work: Callable[[], T]) -> T:
        """Does the work in the caller's thread if the bound allows, else queues it and waits.

        Raises Unavailable when the queue is full.
        """
        with self._changed:
            self._check_open_locked()
            is_free = self._active < self._threads_max and not self._required
            if is_free:
                self._active += 1
        if not is_free:
            return self.submit(work).result()
        try:
            return work()
        finally:
            with self._changed:
                self._active -= 1
                if self._required or self._ahead:
                    self._changed.notify()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queues work for a thread of the pool; raises Unavailable when the queue is full."""
        with self._changed:
            self._check_open_locked()
            if self._waiting_locked() >= self._pending_max:
                raise Unavailable(
                    f"{self._pending_max} reads from object storage wait for one of "
                    f"{self._threads_max} threads already: try again, or raise "
                    "remote.log.reader.max.pending.tasks or remote.log.reader.threads"
                )
            return self._enqueue_locked(self._required, work)

    def try_submit(self, work: Callable[[], T]) -> Future[T] | None:
        """Queues optional work; None when the queue is half full."""
        with self._changed:
            if self._is_closed or self._waiting_locked() >= self._pending_max // 2:
                return None
            return self._enqueue_locked(self._ahead, work)

    @property
    def thread_count(self) -> int:
        """How many reads may run at a time."""
        return self._threads_max

    @property
    def active_count(self) -> int:
        """How many run at this moment."""
        with self._changed:
            return self._active

    @property
    def pending_count(self) -> int:
        """How many wait at this moment."""
        with self._changed:
            return len(self._required) + len(self._ahead)

    def close(self) -> None:
        """Fails queued reads, and waits for running ones up to a deadline."""
        with self._changed:
            self._is_closed = True
            refused = [*self._required, *self._ahead]
            self._required.clear()
            self._ahead.clear()
            threads = list(self._threads)
            self._changed.notify_all()
        for future, _ in refused:
            future.set_exception(_closed())
        for thread in threads:
            thread.join(_CLOSE_DEADLINE_SECONDS / len(threads))

    def _check_open_locked(self) -> None:
        if self._is_closed:
            raise _closed()

    def _waiting_locked(self) -> int:
        """How many reads would wait before another one; negative when threads are free."""
        queued = len(self._required) + len(self._ahead)
        return queued - (self._threads_max - self._active)

    def _enqueue_locked(self, queue: deque[_Task], work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        queue.append((future, work))
        if not self._idle and len(self._threads) < self._threads_max:
            number = len(self._threads)
            thread = threading.Thread(
                target=self._run_tasks, name=f"remote-read-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        else:
            self._changed.notify()
        return future

    def _run_tasks(self) -> None:
        while (task := self._next_task()) is not None:
            future, work = task
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            # Release what the task holds, such as a buffer, before waiting for the next one.
            del task, future, work
            with self._changed:
                self._active -= 1

    def _next_task(self) -> _Task | None:
        with self._changed:
            while not self._is_closed:
                queue = self._required or self._ahead
                if queue and self._active < self._threads_max:
                    self._active += 1
                    return queue.popleft()
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return None


def _closed() -> Closed:
    return Closed("reads from object storage have ended: open the store again")
