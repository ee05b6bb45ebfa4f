"""The process from which Spark forks its Python workers, with their modules already imported.

A worker of Spark's own daemon imports numpy, pyarrow, pandas and numba again, which takes seconds
of a core; one that is forked from here has them. The setting is `spark.python.daemon.module`.

Invariant  nothing here starts a thread: a forked process has only the thread that forks.
"""

import os
import socket

import numba  # noqa: F401
import pandas  # type: ignore[import-untyped]  # noqa: F401 - its stubs are not installed
from pyspark import daemon

import varve.spark.data_source  # noqa: F401

_spark_worker = daemon.worker


def serve_tasks(sock: socket.socket, authenticated: bool) -> int:
    """Spark's worker, which ends without a traceback where Spark has closed the connection.

    Spark does so where it needs no more rows, as after a limit, and when a program ends.
    """
    try:
        return _spark_worker(sock, authenticated)
    except BrokenPipeError:
        os._exit(1)  # as Spark's daemon does after it has printed the traceback


if __name__ == "__main__":
    daemon.worker = serve_tasks
    daemon.manager()
