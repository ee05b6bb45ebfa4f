"""A thread of a deduplication: some partitions, one session with the cluster.

Invariant  threads and connections are bounded by the number of workers, not of partitions.
Threads    one at a time; `close` follows the last use.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from varve.dedup.task import Task, TaskPlace
from varve.foundation.errors import OffsetOutOfRange, StoreError, Unavailable
from varve.records import CommittedBatches

_FETCH_WAIT_MS: Final = 500
_IDLE_SECONDS: Final = 0.05
_EMPTY_FETCHES_MAX: Final = 60
_FETCH_BYTES: Final = 16 << 20
"""What one fetch of all partitions of a worker may return, about."""
_PARTITION_BYTES_MIN: Final = 256 << 10


class DedupWorker:
    """Runs the tasks of some partitions."""

    def __init__(
        self, context: TaskPlace, partitions: Iterable[int], stopping: threading.Event
    ) -> None:
        self._backend = context.backend.new_session()
        self._stopping = stopping
        own = replace(context, backend=self._backend)
        self.tasks = [Task(own, partition) for partition in partitions]
        share = max(_PARTITION_BYTES_MIN, _FETCH_BYTES // len(self.tasks))
        self._max_bytes = min(context.settings.chunk_bytes, share)

    def open(self) -> None:
        for task in self.tasks:
            task.open()

    def catch_up(self) -> None:
        """Processes what the input has now, one partition after the other."""
        for task in self.tasks:
            self._catch_up(task, end=task.look())

    def _catch_up(self, task: Task, *, end: int) -> None:
        empty_fetches = 0
        while (offset := task.position.offset) < end and not self._stopping.is_set():
            task.run_once(wait_ms=_FETCH_WAIT_MS)
            empty_fetches = 0 if task.position.offset > offset else empty_fetches + 1
            if empty_fetches > _EMPTY_FETCHES_MAX:
                raise Unavailable(
                    f"{self._backend.name}: {self._backend.topics.input}-{task.partition} returns "
                    f"nothing at offset {offset}, but ends at {end}: try again"
                )

    def follow(self, stop: threading.Event) -> None:
        """Processes what comes until one of the events is set."""
        while not (stop.is_set() or self._stopping.is_set()):
            fetched = self._fetch()
            for task in self.tasks:
                if not task.process(fetched.get(task.partition)):
                    task.rest()
            if not fetched:
                stop.wait(_IDLE_SECONDS)

    def _fetch(self) -> Mapping[int, CommittedBatches]:
        positions = {task.partition: task.position for task in self.tasks}
        try:
            return self._backend.input.fetch(
                positions, max_bytes=self._max_bytes, wait_ms=_FETCH_WAIT_MS
            )
        except OffsetOutOfRange as error:
            self._recover_positions(error)
            return {}

    def _recover_positions(self, error: OffsetOutOfRange) -> None:
        """A fetch does not say which partition it is about: any of them may have moved."""
        has_moved = False
        for task in self.tasks:
            before = task.position
            try:
                task.recover_position(error)
            except OffsetOutOfRange as found:
                if found is not error:
                    raise
            has_moved |= task.position != before
        if not has_moved:
            raise error

    def close(self, *, is_clean: bool) -> list[StoreError]:
        """Closes every task, with a checkpoint unless something failed; returns the errors."""
        errors = []
        for task in self.tasks:
            try:
                task.close(is_clean=is_clean)
            except StoreError as error:
                errors.append(error)
        self._backend.close()
        return errors
