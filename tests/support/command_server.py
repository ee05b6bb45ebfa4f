"""Runs commands in processes that have everything imported already.

`python -m tests.support.command_server SOCKET` forks a process for each command. With `spark` as
second argument it runs them one after another in its own process, which holds one Spark session, in
the directory in which it was started: Java cannot be forked, and knows its first directory only.
There the programs of a page continue each other, as in one interpreter.

Crash      a command whose client is gone is killed, as if it had been the client; the end of the
           input, as when the tests are killed, ends everything.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

_SETTLE_SECONDS = 20.0


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The order of a client, and its standard files."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    order: dict[str, Any] = json.loads(_read_line(connection))
    return order, files


def _read_line(connection: socket.socket) -> bytes:
    """Up to the end of the line: what follows are signals."""
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError("the client ended before its order did")
        line += piece
    return line


def _run(order: dict[str, Any], names: dict[str, Any] | None = None) -> int:
    """Runs a command here; its exit code. A program begins with the names and adds its own."""
    arguments = order["arguments"]
    os.environ.clear()
    os.environ.update(order["environment"])
    try:
        if arguments[0] == "varve":
            sys.argv = arguments
            runpy.run_module("varve", run_name="__main__")
        else:
            sys.argv = arguments[1:]
            sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[1])))
            given = {} if names is None else names
            given.update(runpy.run_path(arguments[1], given, "__main__"))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _take_files(files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)


# Forking


def _obey(connection: socket.socket) -> None:
    """Signals of the client are signals to this process; without the client it ends."""
    while received := connection.recv(1):
        os.kill(os.getpid(), received[0])
    os.kill(os.getpid(), signal.SIGKILL)


def _run_in_child(connection: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    order, files = _receive(connection)
    _take_files(files)
    if "PYTHONUNBUFFERED" not in order["environment"]:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # a buffer, as usual
    os.chdir(order["directory"])
    threading.Thread(target=_obey, args=(connection,), daemon=True).start()
    code = _run(order)
    atexit._run_exitfuncs()
    connection.sendall(bytes([code & 0xFF]))
    # os._exit: the copy must not run what its parent does at its end.
    os._exit(code)


class _Children:
    """The commands that run."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def start(self, listener: socket.socket, connection: socket.socket) -> None:
        pid = os.fork()
        if pid == 0:
            listener.close()
            try:
                os.setpgid(0, 0)
                _run_in_child(connection)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        connection.close()
        self._pids.add(pid)

    def reap(self) -> int:
        """How many run, without those that ended."""
        for pid in list(self._pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._pids.discard(pid)
        return len(self._pids)

    def kill(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _preload() -> None:
    from importlib import import_module

    from varve.cli.main import app
    from varve.records import Codec, Record, build_batch

    build_batch([Record(b"key", b"value")], codec=Codec.NONE)  # loads the kernels
    for module in ("confluent_kafka", "varve.kafka_server.launch", "varve.http.shapes.launch"):
        import_module(module)
    _import_commands(app)
    gc.freeze()


def _import_commands(group: Any) -> None:
    import click

    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            _import_commands(command)


def _serve_forking(listener: socket.socket) -> None:
    _preload()
    children = _Children()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select(timeout=1):
            if key.fileobj is listener:
                connection, _ = listener.accept()
                children.start(listener, connection)
                continue
            expected = sys.stdin.readline()
            if not expected:
                children.kill()
                return
            deadline = time.monotonic() + _SETTLE_SECONDS
            while children.reap() > int(expected) and time.monotonic() < deadline:
                threading.Event().wait(0.01)
            print("settled", flush=True)
        children.reap()


# Spark


def _serve_spark(listener: socket.socket) -> None:
    from varve.spark.session import get_session

    session = get_session(
        master="local[2]",
        conf={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    threading.Thread(target=_end_with_input, args=(os.dup(0),), daemon=True).start()
    print("ready", flush=True)
    own_files = [os.dup(number) for number in range(3)]
    page, names = "", dict[str, Any]()
    while session is not None:
        connection, _ = listener.accept()
        order, files = _receive(connection)
        _take_files(files)
        if page != order["environment"]["PAGE"]:
            page, names = order["environment"]["PAGE"], {}
        code = _run(order, names)
        for number, file in enumerate(own_files):
            os.dup2(file, number)
        connection.sendall(bytes([code & 0xFF]))
        connection.close()


def _end_with_input(file: int) -> None:
    os.read(file, 1)
    os._exit(0)


def main(path: str, *kind: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        if kind == ("spark",):
            _serve_spark(listener)
        else:
            _serve_forking(listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
