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
    StoreUnavailable,
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


def failure_of(last: str) -> StoreError:
    return explain_failure(PythonException(_TRACE.format(last=last)))


@pytest.mark.parametrize("kind", [Corrupt, NotFound, StoreUnavailable])
def test_an_error_of_ours_on_an_executor_comes_back_as_itself(kind: type[StoreError]) -> None:
    found = failure_of(f"varve.foundation.errors.{kind.__name__}: object a/b is gone: 5 of 7")
    assert type(found) is kind
    assert str(found) == "object a/b is gone: 5 of 7"


def test_an_error_of_ours_that_was_the_cause_of_another_gives_way_to_it() -> None:
    found = failure_of(
        "varve.foundation.errors.NotFound: first\n\nDuring handling of the above, another "
        "exception occurred:\n\nvarve.foundation.errors.Corrupt: second"
    )
    assert (type(found), str(found)) == (Corrupt, "second")


def test_any_other_error_of_a_worker_is_its_last_line() -> None:
    found = failure_of("ZeroDivisionError: division by zero")
    assert isinstance(found, JobFailed)
    assert str(found) == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        ("notebook.load.<locals>.Odd: odd thing", "notebook.load.<locals>.Odd: odd thing"),
        ("KeyError", "KeyError"),
        ("varve.cleaning.compaction.rewrite.DamagedSegment: byte 5", "byte 5"),
    ],
)
def test_a_class_with_any_name_is_the_last_line_too(last: str, sentence: str) -> None:
    found = failure_of(last)
    assert (type(found), str(found)) == (JobFailed, sentence)


def test_a_bug_in_a_task_is_the_last_line_of_its_traceback() -> None:
    failed = Py4JError("An error occurred.\n: org.apache.spark.SparkException: Job aborted")
    failed.args = (f"{failed}{_TRACE.format(last='ZeroDivisionError: a bug')}",)
    assert str(explain_failure(failed)) == "ZeroDivisionError: a bug"


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


def test_java_that_is_gone_is_unavailable() -> None:
    found = explain_failure(ConnectionRefusedError(111, "Connection refused"))
    assert type(found) is Unavailable
    assert "Spark's Java process ended" in str(found)


def test_a_class_that_is_none_of_ours_is_not_looked_up() -> None:
    assert isinstance(failure_of("varve.foundation.errors.Exception: no"), JobFailed)


def test_wrong_sql_is_a_wrong_request_without_codes_and_plans() -> None:
    found = explain_failure(
        AnalysisException(
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did "
            "you mean `key`? SQLSTATE: 42703; line 1 pos 28;\n'Project [*]\n+- 'Filter"
        )
    )
    assert type(found) is InvalidRequest
    assert str(found) == "A column with name `nope` cannot be resolved. Did you mean `key`?"
    assert type(explain_failure(ParseException("[PARSE] bad\n== SQL =="))) is InvalidRequest


def test_an_error_while_spark_plans_is_the_last_line_of_its_traceback() -> None:
    last = "FileNotFoundError: [Errno 2] No such file or directory: '/data'"
    outcome = explain_failure(
        AnalysisException(
            "[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: "
            f"{_TRACE.format(last=last)}\n SQLSTATE: 38000"
        )
    )
    assert isinstance(outcome, JobFailed)
    assert str(outcome) == last


def test_an_error_of_ours_on_this_side_is_left_as_it_is() -> None:
    error = NotFound("nothing")
    assert explain_failure(error) is error


def test_an_error_of_javas_is_told_without_its_class() -> None:
    error = RuntimeError(
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job 0 "
        "cancelled\n\tat org.apache.spark"
    )
    found = explain_failure(error)
    assert str(found) == "Job 0 cancelled"


def test_executors_without_varve_are_told_apart() -> None:
    found = failure_of("ModuleNotFoundError: No module named 'varve'")
    assert type(found) is VersionMismatch
    assert "varve job package" in str(found)


def test_executors_of_another_python_are_told_apart() -> None:
    found = failure_of(
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in "
        "worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run with "
        "different minor versions."
    )
    assert type(found) is VersionMismatch
    assert "executors run Python 3.12, the driver 3.11" in str(found)


def test_a_full_disk_of_sparks_names_the_setting() -> None:
    found = explain_failure(
        RuntimeError(
            "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job "
            "aborted\nCaused by: java.io.IOException: No space left on device\n\tat java.base"
        )
    )
    assert type(found) is DiskFull
    assert "spark.local.dir=DIR" in str(found)


@pytest.mark.parametrize(
    "line",
    [
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        "Caused by: java.lang.OutOfMemoryError: Java heap space",
        "Command exited with code 137: exit code 137",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "MemoryError",
    ],
)
def test_a_killed_executor_names_the_settings_of_memory(line: str) -> None:
    found = explain_failure(RuntimeError(f"An error occurred.\n: Job aborted\n{line}\n\tat a.b"))
    assert isinstance(found, JobFailed)
    assert "spark.executor.memory" in str(found)
    assert "\n" not in str(found)
