"""Servers in processes of their own, for clients over sockets.

with ServerMaker() as maker, maker.start(tmp_path) as server:
    client.connect(server.bootstrap)
    server.kill()
    server.start()

Invariant  a server keeps its port over its lives; nobody else can get it in between.
Crash      `kill` is kill -9: nothing is flushed, closed or answered any more.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from tests.support.kafka_proxy import Proxy

HOST: Final = "127.0.0.1"
_SCRIPT: Final = Path(__file__).with_name("kafka_forked_server.py")
_PATIENCE_SECONDS: Final = 60.0
_SETTINGS: Final = {
    "listener.security.protocol.map": "DIRECT:PLAINTEXT,PROXIED:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


class ReservedPort:
    """A port of loopback that is ours until closed; a server that reuses addresses may have it."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class _Forker:
    """A process that has loaded everything and forks one server at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("end")

    def order(self, directory: Path, settings: Mapping[str, str]) -> None:
        assert self.process.stdin is not None
        line = json.dumps({"directory": str(directory), "settings": dict(settings)})
        print(line, file=self.process.stdin, flush=True)

    def expect(self, start: str) -> str:
        """The next line that starts so; raises when the server or the process ended before."""
        while True:
            line = self._lines.get(timeout=_PATIENCE_SECONDS)
            if line.startswith(start):
                return line
            if line in ("dead", "end"):
                raise AssertionError(f"the server ended; its errors are on stderr ({line})")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(_PATIENCE_SECONDS)
        self._reader.join(_PATIENCE_SECONDS)
        self.process.stdout.close()


class ServerMaker:
    """Starts servers quickly; each process behind it has one at a time."""

    def __init__(self) -> None:
        self._idle: list[_Forker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for forker in self._idle:
            forker.close()

    def start(self, directory: Path, **settings: str) -> "ServerProcess":
        """Settings by Kafka's names, with underscores for dots."""
        forker = self._idle.pop() if self._idle else _Forker()
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return ServerProcess(forker, self._idle, directory, given)


class ServerProcess:
    """A server, its port, and a second way to it through a proxy that may lose answers."""

    def __init__(
        self,
        forker: _Forker,
        idle: list[_Forker],
        directory: Path,
        settings: Mapping[str, str],
    ) -> None:
        self._forker = forker
        self._idle = idle
        self._directory = directory
        self._pid: int | None = None
        with ExitStack() as stack:
            direct = stack.enter_context(ReservedPort())
            behind = stack.enter_context(ReservedPort())
            self.proxy = stack.enter_context(Proxy(HOST, behind.number))
            self.bootstrap = f"{HOST}:{direct.number}"
            self.proxied = f"{HOST}:{self.proxy.port}"
            self._settings = {
                **_SETTINGS,
                "listeners": f"DIRECT://{self.bootstrap},PROXIED://{HOST}:{behind.number}",
                "advertised.listeners": f"PROXIED://{self.proxied}",
                **settings,
            }
            self.start()
            self._stack = stack.pop_all()

    def start(self) -> None:
        """Starts on the same directory and ports as before."""
        assert self._pid is None
        self._forker.order(self._directory, self._settings)
        self._pid = int(self._forker.expect("pid ").split()[1])
        try:
            self._forker.expect("varve serves")
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def kill(self) -> None:
        """Ends the process as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends the process in order."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._pid is None:
            return
        pid, self._pid = self._pid, None
        os.kill(pid, number)
        self._forker.expect("dead")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stack.close()
        self._idle.append(self._forker)
