"""Clients of both kinds, of npm and light ones, that follow shapes of one server together.

with Audience(server.host, server.port, npm) as audience:
    audience.join({"table": topic.name}, topic.rows)
    traffic.change(100)
    audience.settle()

Threads    light clients live in a loop of the audience's own thread; one thread gives orders.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from tests.support.npm_clients import NpmClients, tell_difference
from tests.support.shape_follower import Follower
from tests.support.shape_topic import Rows

MODES: Final = (False, True)
"""Whether a client is live by server-sent events."""
_PATIENCE_SECONDS: Final = 60.0
_numbers = itertools.count()


@dataclass(slots=True)
class Seats:
    """Who follows one shape, and what they must come to."""

    rows: Callable[[], Rows]
    light: list[Follower]
    names: list[str]


class Audience:
    """Grows by `join`; without `npm` all clients are light ones."""

    def __init__(self, host: str, port: int, npm: NpmClients | None) -> None:
        self._host = host
        self._port = port
        self._npm = npm
        self._seats: list[Seats] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._leave(), _PATIENCE_SECONDS)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_PATIENCE_SECONDS)
            self._loop.close()
        if self._npm is not None and (names := self._names()):
            self._npm.stop(*names)

    def join(
        self,
        parameters: Mapping[str, str],
        rows: Callable[[], Rows],
        *,
        light_count: int = 1,
        npm_count: int = 1,
        modes: Sequence[bool] = MODES,
        make: Callable[..., Follower] = Follower,
        resumes: bool = True,
    ) -> list[Follower]:
        """So many clients of each kind and mode begin to follow a shape that must come to `rows`.

        Gives the light ones, which `make` makes. `resumes` is that of `NpmClients.follow`."""
        seats = Seats(rows, [], [])
        self._seats.append(seats)
        for is_sse in modes:
            light = [
                make(self._host, self._port, parameters, is_sse=is_sse) for _ in range(light_count)
            ]
            self._run(self._enter(light), _PATIENCE_SECONDS)
            seats.light += light
            if self._npm is not None:
                names = [f"audience-{next(_numbers)}" for _ in range(npm_count)]
                url = f"http://{self._host}:{self._port}/v1/shape"
                self._npm.follow(
                    *names, url=url, params=parameters, liveSse=is_sse, resumes=resumes
                )
                seats.names += names
        return seats.light

    def settle(self, seconds: float = _PATIENCE_SECONDS) -> None:
        """Returns when every client has exactly its rows; raises where one does not get there."""
        for seats in self._seats:
            rows = seats.rows()
            self._run(_wait_all(seats.light, rows, seconds), seconds + _PATIENCE_SECONDS)
            if self._npm is not None and seats.names:
                self._npm.wait(rows, *seats.names, seconds=seconds)

    @property
    def client_count(self) -> int:
        return len(self._light()) + len(self._names())

    def handles(self) -> set[str]:
        """Those that clients follow now."""
        told = {one.handle for one in self._light()}
        return told | {self._facts(name)["handle"] for name in self._names()}

    def refetch_count(self) -> int:
        """How often clients had to begin anew, all together."""
        return sum(self.refetch_counts())

    def refetch_counts(self) -> list[int]:
        """How often each client had to begin anew."""
        of_npm = [int(self._facts(name)["refetches"]) for name in self._names()]
        return [*of_npm, *(one.refetch_count for one in self._light())]

    def errors(self) -> list[str]:
        """What clients of npm told the app; a light one raises in `settle`."""
        return [error for name in self._names() for error in self._facts(name)["errors"]]

    def _light(self) -> list[Follower]:
        return [one for seats in self._seats for one in seats.light]

    def _names(self) -> list[str]:
        return [name for seats in self._seats for name in seats.names]

    def _facts(self, name: str) -> dict[str, Any]:
        assert self._npm is not None
        return self._npm.facts(name)

    async def _enter(self, light: Sequence[Follower]) -> None:
        for one in light:
            await one.__aenter__()

    async def _leave(self) -> None:
        await asyncio.gather(*(one.__aexit__() for one in self._light()))

    def _run(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)


async def _wait_all(light: Sequence[Follower], rows: Rows, seconds: float) -> None:
    results = await asyncio.gather(
        *(one.wait_rows(rows, seconds) for one in light), return_exceptions=True
    )
    for one, result in zip(light, results, strict=True):
        if isinstance(result, TimeoutError):
            raise AssertionError(
                f"a light client is behind after {seconds} s, at {one.offset} of {one.handle}: "
                f"{tell_difference(one.rows, rows)}"
            ) from result
        if isinstance(result, BaseException):
            raise result
