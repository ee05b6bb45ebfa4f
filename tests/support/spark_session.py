"""One Spark session for all tests of a run that need one; it starts in about eight seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from varve.jobs.session import get_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Embedded on two cores, quiet, on loopback alone."""
    session = get_session(master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
