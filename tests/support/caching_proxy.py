"""A cache between clients and a server of shapes, as a CDN is: it believes what answers say.

An answer is kept by its address for as long as its cache-control allows, and those who ask for the
same at the same time share one request. It is as eager as a cache may be: nothing is asked twice
that need not be.

Threads    a loop in a thread of its own; the counts may be read by any.
"""

import asyncio
import contextlib
import re
import threading
import time
from typing import Final, Self

from tests.support.kafka_server import HOST
from tests.support.shape_follower import Answer, Connection

_PATIENCE_SECONDS: Final = 20.0
_HOPS: Final = ("transfer-encoding", "connection", "content-length", "keep-alive")


class CachingProxy:
    """Serves while it is entered; `url` is that of the shapes behind it."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._kept: dict[str, tuple[float, Answer]] = {}
        self._under_way: dict[str, asyncio.Future[Answer]] = {}
        self.request_count = 0
        self.miss_count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._talk, HOST, 0), self._loop
        )
        self._server = starting.result(_PATIENCE_SECONDS)
        self.url = f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}/v1/shape"
        return self

    def __exit__(self, *_: object) -> None:
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ending.result(_PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        # A connection that was accepted just now gets its task after this one has run.
        await asyncio.sleep(0)
        while waiting := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                assert method == "GET", f"{method} is not for caches"
                writer.write(_encode(await self._answer(target)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client is done or has given up waiting, or the cache ends
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, target: str) -> Answer:
        self.request_count += 1
        kept = self._kept.get(target)
        if kept is not None and time.monotonic() < kept[0]:
            return kept[1]
        if target not in self._under_way:
            self.miss_count += 1
            fetching = asyncio.ensure_future(self._fetch(target))
            self._under_way[target] = fetching
            fetching.add_done_callback(lambda _: self._under_way.pop(target, None))
        return await asyncio.shield(self._under_way[target])

    async def _fetch(self, target: str) -> Answer:
        connection = Connection(HOST, self._behind)
        try:
            answer = await connection.get(target, {})
        finally:
            connection.close()
        lifetime = _read_lifetime(answer.headers.get("cache-control", ""))
        if lifetime:
            self._kept[target] = (time.monotonic() + lifetime, answer)
        return answer


def _read_lifetime(control: str) -> int:
    """Seconds that a shared cache may keep an answer."""
    if "no-store" in control or "no-cache" in control:
        return 0
    found = re.search(r"s-maxage=(\d+)", control) or re.search(r"max-age=(\d+)", control)
    return int(found[1]) if found else 0


def _encode(answer: Answer) -> bytes:
    kept = {name: value for name, value in answer.headers.items() if name not in _HOPS}
    lines = [f"{name}: {value}" for name, value in kept.items()]
    head = [f"HTTP/1.1 {answer.status} x", *lines, f"content-length: {len(answer.body)}", "", ""]
    return "\r\n".join(head).encode("latin-1") + answer.body
