"""What Spark hands to a task of the data source."""

from pyspark.sql.datasource import InputPartition

from varve.jobs.source_read import TaskRead


class TaskPartition(InputPartition):
    """What one task reads."""

    def __init__(self, task: TaskRead) -> None:
        super().__init__(None)
        self.task = task
