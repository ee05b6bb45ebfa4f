"""Memory that requests arrive in, and the bound on all of it.

Invariant  a buffer goes back to the pool only when nobody looks into it any more: one that a
           handler kept a view of is left to that view.
           What is taken from a budget is given back once; who waits for room is served in turn.
Threads    the loop's alone.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

BASE_BYTES: Final = 16 << 10
"""What a connection may receive into without asking: a budget bounds only what is larger."""
_POOLED_BYTES: Final = 16 << 20
_POOLED_COUNT: Final = 256


class ReceiveBuffer:
    """Bytes of one connection: those from `start` to `filled` are not parsed yet.

    `users` are the requests that still look into it, and the connection while it fills it.
    """

    __slots__ = ("cost", "data", "filled", "start", "users", "view")

    def __init__(self, data: bytearray, cost: int) -> None:
        self.data = data
        self.cost = cost
        """What it has taken from the budget."""
        self.view = memoryview(data)
        self.start = 0
        self.filled = 0
        self.users = 1

    @property
    def capacity(self) -> int:
        return len(self.data)

    @property
    def unparsed(self) -> int:
        return self.filled - self.start


class ByteBudget:
    """A bound on bytes held for all connections together.

    Waiters are called from a callback of the loop, one in each turn, never by whoever gives memory
    back: that one may be a waiter itself, and hundreds would call each other.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self.taken = 0
        self._loop = loop
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_scheduled = False

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether more is taken than should be, or somebody waits because it was."""
        return self.taken > self.limit or bool(self._waiting)

    def find_room(self, size: int) -> bool:
        """Takes that much if there is room and nobody waits for it; a first one always fits."""
        if self._waiting or (self.taken and self.taken + size > self.limit):
            return False
        self.taken += size
        return True

    def take(self, size: int) -> None:
        """Takes what was made already, whether there is room or not."""
        self.taken += size

    def give_back(self, size: int) -> None:
        self.taken -= size
        assert self.taken >= 0, "more was given back than taken"
        if self._waiting:
            self._schedule()

    def wait(self, size: int, call: Callable[[], None]) -> None:
        """Calls once that much was taken for the caller, in a later turn of the loop."""
        self._waiting.append((size, call))
        self._schedule()

    def forget(self, call: Callable[[], None]) -> None:
        """Removes a waiter."""
        self._waiting = deque(one for one in self._waiting if one[1] != call)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._waiting and self._fits(self._waiting[0][0]):
            self._is_scheduled = True
            self._loop.call_soon(self._serve_first)

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self.limit

    def _serve_first(self) -> None:
        self._is_scheduled = False
        if not self._waiting or not self._fits(self._waiting[0][0]):
            return
        size, call = self._waiting.popleft()
        self.taken += size
        # Before the call: whatever it raises, the others are served.
        self._schedule()
        call()


class BufferPool:
    """Buffers of a few sizes, used again while they are warm."""

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0
        self._free_count = 0

    def make(self, size: int) -> ReceiveBuffer:
        """One of a size that `round_up` gave; what it costs was taken from the budget before."""
        free = self._free.get(size)
        if not free:
            return ReceiveBuffer(bytearray(size), cost_of(size))
        self._free_bytes -= size
        self._free_count -= 1
        return ReceiveBuffer(free.pop(), cost_of(size))

    @staticmethod
    def make_parked(data: memoryview) -> ReceiveBuffer:
        """The beginning of a frame that waits for memory, in no more than it needs itself.

        It takes nothing from the budget: who holds some while waiting for more may wait for ever.
        """
        parked = ReceiveBuffer(bytearray(data), 0)
        parked.filled = len(data)
        return parked

    def leave(self, buffer: ReceiveBuffer) -> None:
        """One user less; the last one's leaving ends the buffer."""
        buffer.users -= 1
        if buffer.users:
            return
        if self._is_unseen(buffer):
            self._keep(buffer.data)
        if buffer.cost:
            self.budget.give_back(buffer.cost)

    @staticmethod
    def _is_unseen(buffer: ReceiveBuffer) -> bool:
        """A bytearray refuses to change its length while a view of it is alive."""
        buffer.view.release()
        try:
            buffer.data.append(buffer.data.pop())
        except BufferError:
            return False
        return True

    def _keep(self, data: bytearray) -> None:
        if len(data) != round_up(len(data)):
            return
        has_room = self._free_bytes + len(data) <= _POOLED_BYTES
        if has_room and self._free_count < _POOLED_COUNT:
            self._free.setdefault(len(data), []).append(data)
            self._free_bytes += len(data)
            self._free_count += 1


def cost_of(size: int) -> int:
    """What a buffer takes from the budget."""
    return size if size > BASE_BYTES else 0


def round_up(size: int) -> int:
    """The size of a buffer for so many bytes: a power of two, or one and a half of one."""
    if size <= BASE_BYTES:
        return BASE_BYTES
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power
