"""The two kinds of session: one with Java in this process, and one over Spark Connect.

Over Spark Connect there is no SparkContext: work is named by a tag. In both kinds varve's work has
the tag `varve`, by which it is cancelled without touching other work of the session.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

_WORK_NAME: Final = re.compile(r"varve[^:]*: (.+)", re.DOTALL)
"""What Spark calls the description of a job, such as `varve compact orders: keys`."""
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
    """What runs inside is called `varve JOB: STEP` in Spark."""
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


@contextmanager
def cancellable(spark: SparkSession) -> Iterator[None]:
    """What runs inside, in this thread, is ended by `cancel_work`."""
    if is_connect(spark):
        spark.addTag(WORK_TAG)
    else:
        spark.sparkContext.addJobTag(WORK_TAG)
    try:
        yield
    finally:
        if is_connect(spark):
            spark.removeTag(WORK_TAG)
        else:
            spark.sparkContext.removeJobTag(WORK_TAG)


def cancel_work(spark: SparkSession) -> None:
    """Ends what the session runs for varve."""
    if is_connect(spark):
        spark.interruptTag(WORK_TAG)
    else:
        spark.sparkContext.cancelJobsWithTag(WORK_TAG)


def find_application(spark: SparkSession) -> str:
    """Spark's name of this run; over Spark Connect the name of the session."""
    if is_connect(spark):
        return str(spark.session_id)  # type: ignore[attr-defined]  # Connect's session has it
    return str(spark.sparkContext.applicationId)
