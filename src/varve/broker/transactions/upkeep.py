"""Looks from time to time for transactions past their timeout and for ids past their use.

Threads    the loop's alone; each of the two rounds is a task that goes on until it is cancelled.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from varve.broker.background import Timers
from varve.broker.settings import TransactionSettings
from varve.broker.transactions.completion import pause
from varve.broker.transactions.table import TransactionEntry, TransactionTable
from varve.foundation.clock import Clock

logger = logging.getLogger(__name__)

_ENTRIES_AT_ONCE: Final = 1_000

Step = Callable[[TransactionEntry], Awaitable[object]]


class TransactionUpkeep:
    """Finds what is due."""

    def __init__(
        self,
        table: TransactionTable,
        *,
        clock: Clock,
        timers: Timers,
        settings: TransactionSettings,
    ) -> None:
        self._table = table
        self._clock = clock
        self._timers = timers
        self._settings = settings

    async def abort_overdue(self, abort: Step) -> None:
        """Aborts for ever what is open longer than its timeout."""
        while True:
            await pause(self._timers, self._settings.transaction_abort_interval_ms)
            for entry in self._table.ongoing():
                if self._is_overdue(entry):
                    await _take(abort, entry)

    async def expire_unused(self, expire: Step) -> None:
        """Expires for ever the ids that were not used for long."""
        while True:
            await pause(self._timers, self._settings.transaction_expiration_interval_ms)
            for count, entry in enumerate(self._table):
                if self._is_expired(entry):
                    await _take(expire, entry)
                elif count % _ENTRIES_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _is_overdue(self, entry: TransactionEntry) -> bool:
        open_ms = self._clock.now_ms() - entry.current.start_ms
        return entry.next_status is None and open_ms > entry.current.timeout_ms

    def _is_expired(self, entry: TransactionEntry) -> bool:
        current = entry.current
        unused_ms = self._clock.now_ms() - current.update_ms
        is_long = unused_ms >= self._settings.transactional_id_expiration_ms
        return is_long and current.is_at_rest and entry.next_status is None


async def _take(step: Step, entry: TransactionEntry) -> None:
    """One that fails unplanned does not end the round."""
    try:
        await step(entry)
    except Exception:
        logger.exception(
            "the upkeep of a transaction failed", extra={"id": entry.current.transactional_id}
        )
