"""Failures in Spark become one sentence and a class that tells what to do."""

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import (
    AnalysisException,
    ParseException,
    PySparkRuntimeError,
    PythonException,
)

from varve.foundation.errors import (
    Corrupt,
    DiskFull,
    InvalidRequest,
    NotFound,
    StoreError,
    Unavailable,
    VersionMismatch,
)
from varve.spark.errors import JobFailed, explain_failure

_TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
  File "source_read.py", line 20, in read
{last}

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""


def worker_error(last: str) -> Exception:
    return PythonException(_TRACE.format(last=last))


def java_error(text: str) -> Exception:
    return RuntimeError(f"An error occurred while calling o1.collect.\n: {text}\n\tat org.apache")


_BUG_IN_TASK = Py4JError("An error occurred.\n: org.apache.spark.SparkException: Job aborted")
_BUG_IN_TASK.args = (f"{_BUG_IN_TASK}{_TRACE.format(last='ZeroDivisionError: a bug')}",)
_DAEMON_ENDED = """
Error from python worker:
  Traceback (most recent call last):
    File "python", line 34, in <module>
      main()
      ^^^^^^
  FileNotFoundError: [Errno 2] No such file or directory
PYTHONPATH was:
  /opt/spark/python.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number
"""
_MISSING_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/data'"


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (worker_error("varve.foundation.errors.Corrupt: a/b: 5 of 7"), Corrupt, "a/b: 5 of 7"),
        (worker_error("varve.foundation.errors.NotFound: a/b: 5 of 7"), NotFound, "a/b: 5 of 7"),
        (
            worker_error(
                "varve.foundation.errors.NotFound: first\n\nDuring handling of the above, another "
                "exception occurred:\n\nvarve.foundation.errors.Corrupt: second"
            ),
            Corrupt,
            "second",
        ),
        (worker_error("ZeroDivisionError: by zero"), JobFailed, "ZeroDivisionError: by zero"),
        (worker_error("notebook.<locals>.Odd: odd"), JobFailed, "notebook.<locals>.Odd: odd"),
        (worker_error("KeyError"), JobFailed, "KeyError"),
        (
            worker_error("varve.cleaning.compaction.rewrite.DamagedSegment: byte 5"),
            JobFailed,
            "byte 5",
        ),
        (worker_error("varve.foundation.errors.Exception: no"), JobFailed, "no"),
        (_BUG_IN_TASK, JobFailed, "ZeroDivisionError: a bug"),
        (
            Py4JError(f"An error occurred.\n: org.apache.spark.SparkException: {_DAEMON_ENDED}"),
            JobFailed,
            "FileNotFoundError: [Errno 2] No such file or directory",
        ),
        (
            AnalysisException(
                "[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: "
                f"{_TRACE.format(last=_MISSING_FILE)}\n SQLSTATE: 38000"
            ),
            JobFailed,
            _MISSING_FILE,
        ),
        (
            AnalysisException(
                "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. "
                "Did you mean `key`? SQLSTATE: 42703; line 1 pos 28;\n'Project [*]\n+- 'Filter"
            ),
            InvalidRequest,
            "Spark refuses the query: A column with name `nope` cannot be resolved. "
            "Did you mean `key`?",
        ),
        (
            java_error("org.apache.spark.SparkException: Could not parse Master URL: 'sparkk://x'"),
            InvalidRequest,
            "'sparkk://x' is not a Spark master: write local[*], spark://host:7077, yarn or "
            "sc://host:15002",
        ),
        (ParseException("[PARSE] bad\n== SQL =="), InvalidRequest, "Spark refuses the query: bad"),
        (
            java_error("org.apache.spark.SparkException: Job 0 cancelled"),
            JobFailed,
            "Job 0 cancelled",
        ),
        (NotFound("an error of ours on this side"), NotFound, "an error of ours on this side"),
    ],
)
def test_a_failure_is_its_last_sentence(
    error: Exception, kind: type[StoreError], sentence: str
) -> None:
    found = explain_failure(error)
    assert (type(found), str(found)) == (kind, sentence)


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (
            worker_error("ModuleNotFoundError: No module named 'varve'"),
            VersionMismatch,
            "varve job package",
        ),
        (
            worker_error(
                "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] "
                "Python in worker has different version: 3.12 than that in driver: 3.11, PySpark "
                "cannot run with different minor versions."
            ),
            VersionMismatch,
            "executors run Python 3.12, the driver 3.11",
        ),
        (
            java_error(
                "org.apache.spark.SparkException: Job aborted\n"
                "Caused by: java.io.IOException: No space left on device"
            ),
            DiskFull,
            "spark.local.dir=DIR",
        ),
        (
            ConnectionRefusedError(111, "Connection refused"),
            Unavailable,
            "Spark's Java process ended",
        ),
        *(
            (java_error(f"Job aborted\n{line}"), JobFailed, "spark.executor.memory")
            for line in (
                "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
                "Caused by: java.lang.OutOfMemoryError: Java heap space",
                "Command exited with code 137: exit code 137",
                "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
                "MemoryError",
            )
        ),
    ],
)
def test_a_failure_of_the_cluster_names_the_remedy_in_one_line(
    error: Exception, kind: type[StoreError], remedy: str
) -> None:
    found = explain_failure(error)
    assert type(found) is kind
    assert remedy in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "Error occurred during initialization of VM\nToo small maximum heap\n",
            "Too small maximum heap",
        ),
        (
            'Exception in thread "main" java.lang.NumberFormatException: Size must be a number\n'
            "\tat org.apache.spark",
            "Size must be a number",
        ),
        ("Unrecognized option: -Xno", "Unrecognized option: -Xno"),
        ("", "Java gateway process exited before sending its port number"),
        (
            "26/11/18 ERROR DiskBlockManager: Failed to create local dir in /proc. Ignoring this "
            "directory.",
            "Failed to create local dir in /proc",
        ),
    ],
)
def test_java_that_does_not_start_says_why(log: str, reason: str) -> None:
    failed = PySparkRuntimeError(
        "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
    )
    found = explain_failure(failed, log)
    assert (type(found), str(found)) == (Unavailable, f"Spark's Java process ended: {reason}")
