"""The process from which Spark forks its Python workers, with their modules already imported.

A worker of Spark's own daemon imports numpy, pyarrow, pandas and numba again, which takes seconds
of a core; one that is forked from here has them. The setting is `spark.python.daemon.module`.

Invariant  nothing here starts a thread: a forked process has only the thread that forks.
"""

import numba  # noqa: F401
import pandas  # type: ignore[import-untyped]  # noqa: F401 - its stubs are not installed
from pyspark.daemon import manager

import varve.spark.data_source  # noqa: F401

if __name__ == "__main__":
    manager()
