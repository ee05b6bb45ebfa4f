"""Who knocks as the server stops is turned away, and nothing is said about it."""

import asyncio
import socket
from typing import Any

from tests.support.server_bench import ServerBench, run
from varve.wire.messages.cluster import ApiVersionsRequest

ADDRESS = "127.0.0.1"
HELLO = ApiVersionsRequest("honest", "1")


def test_a_knock_in_the_moment_of_the_stop_is_no_error() -> None:
    troubles: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: troubles.append(told))
        with socket.socket() as client:
            async with ServerBench() as bench:
                await (await bench.connect()).ask(HELLO, 3)
                client.connect((ADDRESS, bench.port))
                # The next turn of the loop begins with what follows and then hears the knock.
                await asyncio.sleep(0)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            try:
                assert await loop.sock_recv(client, 1) == b""
            except ConnectionError:
                return

    run(scenario())
    assert troubles == []
