"""Gives Spark Python processes that are forked from one that has imported everything.

Spark starts a daemon of Python for each of its worker modules. Those of a data source are
`pyspark.daemon`, whose workers import varve, numpy and pyarrow anew for every call: a second or
two of a core each time, which is most of what a small query costs.

Crash      the process that forks ends with its input; a daemon ends with the input that Java gave
           it, as it does without this.
Threads    none here: a forked process has only the thread that forks.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_PRELOADED: Final = (
    "varve.spark.worker_daemon",
    "varve.spark.deduplication.job",
    "varve.spark.runner",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
)
_PRELOADED_PACKAGE: Final = "pyspark.sql.worker"


@contextmanager
def forked_python(directory: Path) -> Iterator[str]:
    """The path of a program that is Python to Spark while the context is open."""
    program = directory / "python"
    client = Path(__file__).with_name("spark_python_client.py").read_text("utf-8")
    program.write_text(f"#!{sys.executable} -IS\n{client}", encoding="utf-8")
    program.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(directory / "socket")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield str(program)


def _preload() -> None:
    package = importlib.import_module(_PRELOADED_PACKAGE)
    modules = [f"{_PRELOADED_PACKAGE}.{one.name}" for one in pkgutil.iter_modules(package.__path__)]
    for module in (*_PRELOADED, *modules):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as lines:
        order: dict[str, Any] = json.loads(lines.readline())
    return order, files


def _become(connection: socket.socket) -> None:
    """Runs the module that Spark asked for, as `python -m` does; only Spark's own use is served."""
    order, files = _receive(connection)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    paths = [order["directory"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    _, module, *rest = order["arguments"]
    sys.argv = [module, *rest]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _serve(listener: socket.socket) -> None:
    """Forks for each order until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the children are not waited for
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            code = 0
            try:
                _become(connection)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
                code = 1
            os._exit(code & 0xFF)
        connection.close()


def main(path: str) -> None:
    _preload()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        _serve(listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
