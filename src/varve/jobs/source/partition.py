"""What Spark hands to a task of the data source."""

from pyspark.sql.datasource import InputPartition

import varve
from varve.jobs.running.executor import check_version
from varve.jobs.source.read import TaskRead


class TaskPartition(InputPartition):
    """What one task reads, and the version of varve that planned it."""

    def __init__(self, task: TaskRead) -> None:
        super().__init__(None)
        self._version = varve.__version__
        self._task = task

    @property
    def task(self) -> TaskRead:
        """Raises VersionMismatch on an executor that has another varve than planned it."""
        check_version(self._version)
        return self._task
