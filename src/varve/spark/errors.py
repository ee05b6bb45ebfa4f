"""Failures of Spark, translated into varve's errors with a message of one sentence.

An error of varve's that was raised on an executor comes back as the text of a Python traceback in
the text of a Java error; its class and message are parsed from there.
"""

import re
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import AnalysisException, ParseException, PySparkException

from varve.foundation import errors
from varve.foundation.errors import (
    DiskFull,
    InvalidRequest,
    StoreError,
    Unavailable,
    VersionMismatch,
)
from varve.spark.rows import VIEW

_VARVE_ERROR: Final = re.compile(r"\bvarve\.foundation\.errors\.(\w+): (.+)")
_UNKNOWN_TABLE: Final = re.compile(
    r"^\[TABLE_OR_VIEW_NOT_FOUND\] The table or view (`[^\n]{1,200}`) cannot be found", re.M
)
_WRONG_MASTER: Final = re.compile(r"Could not parse Master URL: ('[^'\n]{0,200}')")
_TRACEBACK: Final = re.compile(
    r"(?:^|\S )(?P<indent>[ \t]*)Traceback \(most recent call last\):[^\n]*\n"
    r"(?:(?P=indent)[ \t][^\n]*\n|[ \t]*\n)+(?P=indent)(?P<error>[\w.<>]+(?:: [^\n]*)?)",
    re.M,
)
"""A traceback, which Spark may have indented, and the line that names the error."""
_VARVE_CLASS: Final = re.compile(r"^varve\.[\w.]+: ")
_JAVA_ERROR: Final = re.compile(r"^: (?:[\w.$]+: )*(.+)$", re.M)  # in the text of py4j's error
_JAVA_REASON: Final = re.compile(
    r"^Exception in thread \"main\" (?:[\w.$]+: )*(?P<exception>.+)$"
    r"|^(?P<option>(?:Unrecognized|Invalid) .+)$"
    r"|^Error occurred during initialization of VM\n(?P<start>.+)$"
    r"|ERROR DiskBlockManager: (?P<disk>Failed to create local dir in .+?)\. Ignoring",
    re.M,
)
"""Why Java could not start, or ended, in what it has written."""
_MISSING_VARVE: Final = re.compile(r"No module named '(varve[\w.]*)'")
_PYTHON_MISMATCH: Final = re.compile(
    r"PYTHON_VERSION_MISMATCH\].*?version[^\d]*([\d.]+\d)[^\d]*driver[^\d]*([\d.]+\d)", re.S
)
_DISK_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded")
_LOST: Final = re.compile(
    r"ExecutorLostFailure|java\.lang\.OutOfMemoryError[^\n]*|exit (?:code|status):? 137"
    r"|Python worker exited unexpectedly|Container killed[^\n]*|\bMemoryError\b"
)
_MESSAGE_LENGTH_MAX: Final = 600

SPARK_ERRORS: Final = (PySparkException, Py4JError, ConnectionRefusedError)
"""The errors that PySpark raises: its own, and those of the bridge to Java."""


class JobFailed(StoreError):
    """A job ended with an error that is not one of varve's."""


def explain_failure(error: Exception, log: str = "") -> StoreError:
    """The error of varve's that a failure of Spark stands for; `log` is what Java has written."""
    if isinstance(error, StoreError):
        return error
    text = str(error)
    matches = _VARVE_ERROR.findall(text)
    if matches:
        name, message = matches[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, StoreError):
            return kind(message.strip())
    mismatch = _find_mismatch(text)
    if mismatch is not None:
        return mismatch
    exhausted = _find_exhausted(text)
    if exhausted is not None:
        return exhausted
    if "JAVA_GATEWAY_EXITED" in text or isinstance(
        error, (Py4JNetworkError, ConnectionRefusedError)
    ):
        reason = _JAVA_REASON.search(log)
        sentence = _first_line(text) if reason is None else reason[str(reason.lastgroup)]
        return Unavailable(f"Spark's Java process ended: {sentence.removesuffix('.')}")
    if unknown := _UNKNOWN_TABLE.search(text):
        return InvalidRequest(
            f"Spark refuses the query: there is no table {unknown[1]}; the topic is the table "
            f"`{VIEW}`"
        )
    # A data source that fails while Spark plans is an AnalysisException with Python's traceback.
    if isinstance(error, (AnalysisException, ParseException)) and "Traceback (" not in text:
        return InvalidRequest(f"Spark refuses the query: {_first_line(text).removesuffix('.')}")
    if master := _WRONG_MASTER.search(text):
        return InvalidRequest(
            f"{master[1]} is not a Spark master: write local[*], spark://host:7077, yarn or "
            "sc://host:15002"
        )
    tracebacks = [match["error"] for match in _TRACEBACK.finditer(text)]
    if tracebacks:
        return JobFailed(_VARVE_CLASS.sub("", tracebacks[-1])[:_MESSAGE_LENGTH_MAX])
    if isinstance(error, PySparkException):
        return JobFailed(_first_line(text))
    java = _JAVA_ERROR.search(text)
    return JobFailed(
        _first_line(java[1]) if java else f"{type(error).__name__}: {_first_line(text)}"
    )


def _find_mismatch(text: str) -> VersionMismatch | None:
    """The error for executors whose Python is not the driver's, or has no varve."""
    pythons = _PYTHON_MISMATCH.search(text)
    if pythons:
        return VersionMismatch(
            f"the executors run Python {pythons[1]}, the driver {pythons[2]}: let PYSPARK_PYTHON "
            "name a Python of the driver's minor version on the cluster"
        )
    missing = _MISSING_VARVE.search(text)
    if missing:
        return VersionMismatch(
            f"the executors cannot import {missing[1]}: make an archive with `varve job "
            "package` and pass it with --conf varve.package=FILE, or install this version of varve "
            "there"
        )
    return None


def _find_exhausted(text: str) -> StoreError | None:
    """The error for a full disk of Spark's, or for a process that was killed or lacked memory."""
    if _DISK_FULL.search(text):
        return DiskFull(
            "a disk that Spark writes to is full: free space in spark.local.dir, or name another "
            "directory with --conf spark.local.dir=DIR"
        )
    lost = _LOST.search(text)
    if lost:
        return JobFailed(
            f"an executor was killed or ran out of memory ({lost[0]:.120}): give it more with "
            "--conf spark.executor.memory=4g (spark.driver.memory for local[*]) or "
            "spark.executor.memoryOverhead=2g, or fewer tasks at once with spark.executor.cores"
        )
    return None


def _first_line(text: str) -> str:
    """The sentence of an error without its class in brackets, its SQL state and the query."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    line = re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", line)
    return re.sub(r"\s*SQLSTATE: \w+(; line \d+ pos \d+;?)?", "", line).strip()[
        :_MESSAGE_LENGTH_MAX
    ]
