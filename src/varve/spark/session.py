"""A Spark session: embedded by default, on a cluster with another master, or over Spark Connect.

An embedded session listens on loopback only, has no web UI and logs only errors. Over Spark Connect
(`sc://host:port`) Java and Python run at the server, which must have varve; only session settings
can be set, and there is no SparkContext: work is named by a tag. In every session varve's work has
the tag `varve`, by which it is cancelled without affecting other work.
"""

import importlib.util
import os
import re
import socket
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

import varve
from varve.foundation.errors import InvalidRequest, Unavailable
from varve.spark.data_source import register
from varve.spark.package import PACKAGE_KEY, PYTHON_NAME, with_package

LOCAL: Final = "local[*]"

_COMMON_CONF: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_EMBEDDED_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "varve.spark.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
}
_CONNECT_PORT: Final = 15002
_CONNECT_TIMEOUT_SECONDS: Final = 10
_CONNECT_MODULES: Final = ("grpc", "grpc_status", "google.rpc")


Session = SparkSession
"""For callers that do not import pyspark."""


def has_running_context() -> bool:
    """Whether this process runs Spark already, without Connect."""
    return SparkContext._active_spark_context is not None


def get_session(
    *, master: str | None = None, conf: Mapping[str, str] | None = None, app: str = "varve"
) -> SparkSession:
    """The session of this process, created if there is none; `conf` overrides varve's settings.

    A new session has the time zone UTC, Arrow for the exchange with Python, and
    `spark.sql.python.filterPushdown.enabled`, which option `pushFilters` needs. An embedded one
    also has no web UI, listens on loopback, and has 8 shuffle partitions.

    An existing session is returned as it is, with the data source registered: `conf` and `master`
    apply to a new one. Raises InvalidRequest for a session of another master. `varve.package` in
    `conf` names an archive of `varve job package` for the executors. Raises Unavailable if no Java
    is found, or a package that Spark Connect needs is not installed.
    """
    running_session = _find_live_session(master)
    if running_session is not None:
        register(running_session)
        return running_session
    master_url = master or LOCAL
    session_conf = dict(conf or {})
    if master_url.startswith(REMOTE_SCHEME):
        return _connect(master_url, session_conf)
    _check_master(master_url)
    # Not at the top: `python -m varve.spark.java` warns about a module that is already imported.
    from varve.spark.java import get_java

    os.environ["JAVA_HOME"] = get_java().home  # Spark's own scripts read it first
    is_embedded = master_url.startswith("local") and not master_url.startswith("local-cluster")
    if is_embedded:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark would take the python3 on PATH, which need not have varve.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if PACKAGE_KEY in session_conf:
        session_conf = with_package(session_conf)
        os.environ.setdefault("PYSPARK_PYTHON", PYTHON_NAME)
    builder = SparkSession.Builder().master(master_url).appName(app)
    for name, value in {
        **_COMMON_CONF,
        **(_EMBEDDED_CONF if is_embedded else {}),
        **session_conf,
    }.items():
        builder = builder.config(name, value)
    with nullcontext() if is_embedded else _packages_of_driver():
        spark = builder.getOrCreate()
    register(spark)
    if is_embedded:
        spark.sparkContext.setLogLevel("ERROR")
    return spark


def _find_live_session(master: str | None) -> SparkSession | None:
    """The session of this process; raises InvalidRequest if it has another master.

    Over Spark Connect each URL has its own session, which Spark looks up.
    """
    if master is not None and master.startswith(REMOTE_SCHEME):
        return None
    if is_remote():
        return SparkSession.getActiveSession()
    context = SparkContext._active_spark_context
    if context is None:
        return None
    current = context.master
    if master is not None and master != current:
        raise InvalidRequest(
            f"this process has a Spark session with master {current}, not {master}: stop it "
            "first, or leave the master out"
        )
    return SparkSession.Builder().getOrCreate()  # without options it changes nothing


@contextmanager
def _packages_of_driver() -> Iterator[None]:
    """Gives Python that a Java process started inside runs here the packages of this process.

    Spark plans a read of the data source on this machine with the Python that executors use, by
    name, and that need not have varve. Executors do not inherit the variables.
    """
    homes = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    paths = {
        "PYTHONPATH": [str(Path(varve.__file__).parents[1]), *homes],
        "PATH": [os.path.dirname(sys.executable)],
    }
    saved = {name: os.environ.get(name) for name in paths}
    for name, path in paths.items():
        before = saved[name]
        # The first entry wins: packages of this process, but programs of the existing PATH.
        joined = [*path, before] if name == "PYTHONPATH" else [before, *path]
        os.environ[name] = os.pathsep.join(entry for entry in dict.fromkeys(joined) if entry)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _connect(url: str, conf: dict[str, str]) -> SparkSession:
    """A session at a Spark Connect server."""
    _check_connect(url)
    if PACKAGE_KEY in conf:
        raise Unavailable(
            f"{PACKAGE_KEY} cannot be given over Spark Connect: executors and the server's Python "
            f"are configured when the server at {url} starts; `varve job package` prints how"
        )
    builder = SparkSession.Builder().remote(url)
    for name, value in {**_COMMON_CONF, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _check_connect(url: str) -> None:
    """Raises Unavailable if a package is missing or no server listens at the address.

    Spark's own client would retry for ten minutes.
    """
    missing = [name for name in _CONNECT_MODULES if not _is_installed(name)]
    if missing:
        raise Unavailable(
            f"{url} is Spark Connect, which needs {', '.join(missing)}: run "
            "`pip install '.[connect]'` in the clone of varve"
        )
    address = urlsplit(url.partition(";")[0])
    try:
        host, port = address.hostname or "", address.port or _CONNECT_PORT
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"no Spark Connect server responds at {url:.200} ({_reason(error)}): start it with "
            "start-connect-server.sh, or correct the address"
        ) from error


def _check_master(url: str) -> None:
    """Raises Unavailable if no master of a standalone cluster listens.

    Spark itself would try for a minute and then stop with an error of Java's.
    """
    scheme, _, addresses = url.partition("://")
    failures = []
    for address in addresses.split(",") if scheme == "spark" else ():
        host, _, port = address.rpartition(":")
        try:
            timeout = _CONNECT_TIMEOUT_SECONDS
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout).close()
        except (OSError, ValueError) as error:
            failures.append(_reason(error))
        else:
            return
    if failures:
        raise Unavailable(
            f"no Spark master responds at {url:.200} ({failures[0]:.120}): start it, or correct "
            "the address of --master"
        )


def _reason(error: OSError | ValueError) -> str:
    """Without the number that Python puts before it."""
    return f"{getattr(error, 'strerror', None) or error}"[:120]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # a parent is missing, or the import is blocked
        return False


# Work in a session


_WORK_NAME: Final = re.compile(r"varve[^:]*: (.+)", re.DOTALL)
"""The description of a Spark job by `named_work`, such as `varve verify orders: keys`."""
REMOTE_SCHEME: Final = "sc://"
WORK_TAG: Final = "varve"
_DESCRIPTION: Final = "spark.job.description"

_TAG: Final = re.compile(r"[^\w.-]+")


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return is_remote() and type(spark).__module__.startswith("pyspark.sql.connect.")


def find_step(description: str) -> str | None:
    """The step that a description by `named_work` names; None for work that is not varve's."""
    match = _WORK_NAME.fullmatch(description)
    return None if match is None else match[1]


@contextmanager
def named_work(spark: SparkSession, job: str, step: str) -> Iterator[None]:
    """Names the work inside `varve JOB: STEP` in Spark."""
    name = f"varve {job}: {step}" if job else f"varve: {step}"
    if is_connect(spark):
        tag = _TAG.sub("-", name)  # a tag has no comma
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(name)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it


def tag_work(spark: SparkSession) -> None:
    """Lets `cancel_work` end the work of this thread from here on."""
    if is_connect(spark):
        spark.addTag(WORK_TAG)
    else:
        spark.sparkContext.addJobTag(WORK_TAG)


def cancel_work(spark: SparkSession) -> None:
    """Cancels varve's work in the session."""
    if is_connect(spark):
        spark.interruptTag(WORK_TAG)
    else:
        spark.sparkContext.cancelJobsWithTag(WORK_TAG)


def find_application(spark: SparkSession) -> str:
    """Spark's application id; over Spark Connect the session id."""
    if is_connect(spark):
        return str(spark.session_id)  # type: ignore[attr-defined]  # Connect's session has it
    return str(spark.sparkContext.applicationId)
