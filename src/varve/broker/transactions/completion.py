"""From a decision to its end: markers in every partition, then the last record of a transaction.

Goes on until it is done. What fails is tried again, with longer and longer pauses; a partition
whose topic was deleted is left out.

Crash      a decision that is read back from the log is carried out as one just made.
Threads    the loop's alone; one task for each transaction on its way.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from varve.broker.background import Timers
from varve.broker.transactions.markers import Markers
from varve.broker.transactions.state import Status, Transaction
from varve.broker.transactions.table import TransactionEntry, TransactionTable
from varve.broker.transactions.transaction_log import TransactionLog
from varve.commit_log import TopicPartition
from varve.foundation.clock import Clock
from varve.foundation.errors import StoreError

logger = logging.getLogger(__name__)

_PAUSE_FIRST_MS: Final = 50
_PAUSE_MAX_MS: Final = 10_000


class TransactionalOffsets(Protocol):
    """Offsets that wait for the end of a producer's transaction."""

    def complete_transaction(self, producer_id: int, committed: bool) -> None: ...


class Completion:
    """Brings decided transactions to their end."""

    def __init__(
        self,
        table: TransactionTable,
        log: TransactionLog,
        markers: Markers,
        *,
        clock: Clock,
        timers: Timers,
        offsets: TransactionalOffsets,
    ) -> None:
        self._table = table
        self._log = log
        self._markers = markers
        self._clock = clock
        self._timers = timers
        self._offsets = offsets
        self.counts: Counter[Status] = Counter()
        """Transactions completed since the start, by their last status."""

    async def run(self, entry: TransactionEntry) -> None:
        """Returns when the transaction is complete, on disk."""
        left = set(entry.current.partitions)
        pause_ms = _PAUSE_FIRST_MS
        while not await self._try(entry, left):
            await pause(self._timers, pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def _try(self, entry: TransactionEntry, left: set[TopicPartition]) -> bool:
        """Whether it is complete now; takes from `left` the partitions that need no more."""
        try:
            await self._mark(entry.current, left)
            if not left:
                await self._close(entry)
            return not left
        except StoreError as error:
            logger.warning(
                "the end of a transaction waits",
                extra={"id": entry.current.transactional_id, "error": str(error)},
            )
        except Exception:
            logger.exception(
                "the end of a transaction failed", extra={"id": entry.current.transactional_id}
            )
        return False

    async def _mark(self, decided: Transaction, left: set[TopicPartition]) -> None:
        if left:
            epoch = self._log.coordinator_epoch(decided.transactional_id)
            failed = await self._markers.write(decided, left, coordinator_epoch=epoch)
            left.intersection_update(failed)

    async def _close(self, entry: TransactionEntry) -> None:
        decided = entry.current
        self._offsets.complete_transaction(
            decided.producer_id, decided.status is Status.PREPARE_COMMIT
        )
        completed = decided.completed(now_ms=self._clock.now_ms())
        entry.next_status = completed.status
        try:
            await self._log.append(completed)
        finally:
            entry.next_status = None
        self._table.replace(entry, completed)
        self.counts[completed.status] += 1


async def pause(timers: Timers, milliseconds: int) -> None:
    """Waits by the broker's timers."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = timers.call_later(milliseconds, _waker(over))
    try:
        await over
    finally:
        timer.cancel()


async def wait_for(task: "asyncio.Task[None]", timers: Timers, milliseconds: int) -> None:
    """Waits for a task, but no longer than this; what becomes of it is not looked at."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    wake = _waker(over)
    task.add_done_callback(lambda _: wake())
    timer = timers.call_later(milliseconds, wake)
    try:
        await over
    finally:
        timer.cancel()


def _waker(future: "asyncio.Future[None]") -> Callable[[], None]:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    return wake
