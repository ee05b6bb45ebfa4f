"""A proxy on loopback that loses what it is told to lose between a client and a server.

Invariant  a request whose answer is lost has gone through: the server has answered it.
Threads    the proxy's loop has its own; `decide` is called there.
"""

import asyncio
import socket
from collections.abc import Callable
from enum import Enum, auto
from struct import Struct
from typing import Final, Self

from tests.support.loop_thread import LoopThread
from varve.wire import ApiKey

_HEAD: Final = Struct(">ihhi")  # length, API key, version, correlation id
_ANSWER: Final = Struct(">ii")  # length, correlation id


class Fault(Enum):
    """What happens to a request and its answer."""

    NONE = auto()
    CUT_BEFORE = auto()
    """The connection ends, the request never arrives."""
    CUT_AFTER = auto()
    """The request is answered, the connection ends instead of passing the answer on."""
    LOSE_ANSWER = auto()
    """The request is answered; the client waits for it until its patience ends."""


Decide = Callable[[ApiKey], Fault]


def lose_nothing(api: ApiKey) -> Fault:
    return Fault.NONE


class Proxy:
    """Passes requests and answers on, frame by frame."""

    def __init__(self, host: str, upstream_port: int) -> None:
        self._host = host
        self._upstream_port = upstream_port
        self.decide: Decide = lose_nothing
        self.fault_count = 0
        self._is_unreachable = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server((host, 0))
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        self._server = self._thread.run(asyncio.start_server(self._accept, sock=self._socket))
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._stop())
        self._thread.close()

    def cut_off(self) -> None:
        """Nobody comes through any more, as if their machine had lost its power."""
        self._is_unreachable = True
        self._thread.loop.call_soon_threadsafe(self._abort_all)

    def heal(self) -> None:
        """All goes through again, nothing is lost."""
        self.decide = lose_nothing
        self.fault_count = 0
        self._is_unreachable = False

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _stop(self) -> None:
        self._server.close()
        self._abort_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if not self._is_unreachable:
                await self._join(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # either side may end at any time
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        above_reader, above_writer = await asyncio.open_connection(self._host, self._upstream_port)
        self._writers.add(above_writer)
        faults: dict[int, Fault] = {}
        pumps = [
            asyncio.ensure_future(self._pass_requests(reader, above_writer, faults)),
            asyncio.ensure_future(self._pass_answers(above_reader, writer, faults)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers.discard(above_writer)
            above_writer.transport.abort()

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, faults: dict[int, Fault]
    ) -> None:
        while True:
            head = await reader.readexactly(_HEAD.size)
            length, api, _, correlation_id = _HEAD.unpack(head)
            rest = await reader.readexactly(length + 4 - _HEAD.size)
            fault = self.decide(ApiKey(api))
            if fault is not Fault.NONE:
                self.fault_count += 1
                faults[correlation_id] = fault
            if fault is Fault.CUT_BEFORE:
                return
            writer.write(head + rest)
            await writer.drain()

    async def _pass_answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, faults: dict[int, Fault]
    ) -> None:
        while True:
            head = await reader.readexactly(_ANSWER.size)
            length, correlation_id = _ANSWER.unpack(head)
            rest = await reader.readexactly(length + 4 - _ANSWER.size)
            fault = faults.pop(correlation_id, Fault.NONE)
            if fault is Fault.CUT_AFTER:
                return
            if fault is Fault.NONE:
                writer.write(head + rest)
                await writer.drain()
